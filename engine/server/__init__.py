"""The OpenAI-compatible server: HTTP in, `mkport.engine.request` types to the engine, HTTP out.

It knows no model and no kernel. `app.create_app` makes the application, `lifecycle.serve` runs it.
"""
