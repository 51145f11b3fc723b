"""The server: an engine behind HTTP, in the forms of the APIs that people already use.

app.py puts it together, service.py is what every route gets; one file for each route or family of routes. Forms of
requests and answers that files have, too, are above this folder (openai_requests.py, openai_responses.py).
"""
