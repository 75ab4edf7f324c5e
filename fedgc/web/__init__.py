"""The monitoring page: the store's data on runs, for a browser and for Prometheus.

    snapshot  the content of the page, as values, from the store alone
    stream    the snapshot again whenever the run has news (server-sent events)
    metrics   the values of a run in Prometheus's format
    access    access control: this machine only, or holders of the token
    app       the routes; serve: the port
    report    a run as values, report_page as one HTML file; markup escapes all text
    page/     one HTML file, its style and its script: no build step, no external resources

Nothing here writes to the store or contacts a client.
"""
