"""Locust against a running server: what is asked (traces), who asks (locustfile), what came of it (hit_rate)."""
