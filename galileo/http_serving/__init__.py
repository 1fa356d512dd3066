"""ASGI applications over HTTP/1.1 on uvicorn, with bounds for all that a client may take."""
