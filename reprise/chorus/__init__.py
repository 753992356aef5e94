"""Chorus: reuse of other requests' latents (Chorus, section 3). Stages 1 and 3 so far."""
