# The only public part of a server: nginx, one port, two paths.
# Built from the repository's root: docker build -f docker/proxy.Dockerfile -t fedgc-proxy .
FROM debian:bookworm-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends nginx-light \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /usr/share/doc /usr/share/man /etc/nginx/sites-enabled \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin fedgc
COPY docker/proxy/nginx.conf /etc/nginx/nginx.conf
COPY docker/proxy/healthy docker/proxy/start /usr/local/bin/

# The server's internal address, and the port for clients.
ENV FEDGC_INSIDE=server \
    FEDGC_PORT=8443
USER 10001:10001
EXPOSE 8443
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 CMD ["/usr/local/bin/healthy"]
ENTRYPOINT ["/usr/local/bin/start"]
