"""Deployment: certificates, key files, registration, local federations, processes."""
