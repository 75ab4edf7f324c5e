"""The page: what the store knows of a run, for a browser and for Prometheus.

    picture   what the page shows of a run, as values, from the store alone
    stream    the picture again whenever the run has news (server-sent events)
    metrics   the figures of a run in Prometheus's words
    guard     who may see it: this machine alone, or whoever holds the token
    app       the addresses; serve: the port
    page/     one HTML file, its style and its script: no build step, nothing from another machine

Nothing here writes to the store or speaks to a client.
"""
