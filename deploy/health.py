"""Whether the server in this container lives: exit code 0 if it answers at /health.

Owns that one question, for Docker's HEALTHCHECK. It knows the port and whether there is TLS from the environment alone.
"""

import os
import ssl
import sys
import urllib.request

TIMEOUT_S = 4


def main() -> int:
    """return: the exit code"""
    scheme = "https" if os.environ.get("KAISHU_TLS_CERTIFICATE") else "http"
    url = f"{scheme}://127.0.0.1:{os.environ.get('KAISHU_PORT') or 8000}/health"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is this machine, under another name
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with direct.open(url, timeout=TIMEOUT_S) as answer:
            return 0 if answer.status == 200 else 1
    except OSError as problem:
        print(f"{url}: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
