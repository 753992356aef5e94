"""Locust against a running server: what is asked (traces), who asks (locustfile), what came of it (ledger, hit_rate)."""
