"""Why a cluster cannot be reached, in one line: aiokafka says so only in its log."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from affidavit.errors import AffidavitError
from affidavit.kafka.errors import KafkaRefused, KafkaUnreachable

_AUTHENTICATION = (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
PROBE_LIMIT_S = 1.5
PROBES = 2


async def why_not(options: dict[str, Any]) -> AffidavitError:
    """What a connection to the first bootstrap brokers says.

    Args:
        options: of `KafkaConnection.client_options`.

    Returns:
        `KafkaRefused` where a broker has answered and refused us, else `KafkaUnreachable`. Neither names a host, which
        a reader of Temporal's history need not know, nor repeats what a library says of a credential.
    """
    found: AffidavitError = KafkaUnreachable("no Kafka broker answers")
    for address in options["bootstrap_servers"][:PROBES]:
        host, _, port = address.rpartition(":")
        arguments = {name: value for name, value in options.items() if name != "bootstrap_servers"}
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                connection = await create_conn(host.strip("[]"), int(port), **arguments)
        except _AUTHENTICATION:
            return KafkaRefused("Kafka refuses the credentials: check the user, the password and the SASL mechanism")
        except ssl.SSLCertVerificationError as error:
            return KafkaRefused(f"the Kafka broker's certificate is not trusted: {error.verify_message}")
        except ssl.SSLError:
            return KafkaRefused("the Kafka broker does not speak TLS as we do; check the port and AFFIDAVIT_KAFKA_TLS")
        except TimeoutError:
            found = KafkaUnreachable("no Kafka broker answers in time")
        except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, KafkaError):
            hint = "speak" if "ssl_context" in options else "want"
            found = KafkaUnreachable(f"a Kafka broker ends our connection at once; does its listener {hint} TLS?")
        except OSError:
            pass
        else:
            with contextlib.suppress(Exception):
                connection.close()
            return KafkaUnreachable("a Kafka broker answers, but not in time")
    return found
