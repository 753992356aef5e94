"""What each deployment runs, one module each: a replica imports no more than it needs, torch least of all."""
