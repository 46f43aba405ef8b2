"""The local web page and service: a scan goes in, a mask comes out. `fheat studio` starts it.

docs/how-to/studio.md shows it, docs/reference/studio-service.md lists its routes and limits.

One process answers requests and moves bytes. Whatever computes runs in a process of its own (`worker`), which can be
killed at any moment.
"""
