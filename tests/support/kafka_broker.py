"""A real Apache Kafka broker for tests: one node in KRaft mode on loopback, from Maven's artefacts, always ended.

Listeners: PLAIN text for the tests themselves, SECURE with TLS and SASL, and PROXIED behind a proxy that loses what a
network loses.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import shutil
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from aiokafka.client import AIOKafkaClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.support.ports import free_ports
from tests.support.proxy import Proxy, proxied
from workers.devserver import LOOPBACK, _die_with_parent

ROOT = Path(__file__).parents[2]
POM = ROOT / "tests" / "kafka" / "pom.xml"
LIBRARIES = ROOT / ".cache" / "kafka"
FETCH_LIMIT_S = 240.0
START_LIMIT_S = 90.0

USER = "affidavit"
BARRED = "barred"
"""A user whose password is right and who may do nothing."""
PASSWORD = "correct-horse"

_CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAIN://{host}:{plain},SECURE://{host}:{secure},PROXIED://{host}:{behind},CONTROLLER://{host}:{controller}
advertised.listeners=PLAIN://{host}:{plain},SECURE://{host}:{secure},PROXIED://{host}:{proxied}
inter.broker.listener.name=PLAIN
listener.security.protocol.map=PLAIN:PLAINTEXT,SECURE:SASL_SSL,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
num.network.threads=2
num.io.threads=2
num.partitions=1
auto.create.topics.enable=true
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.coordinator.rebalance.protocols=classic
log.cleaner.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{user}
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={folder}/broker.pem
listener.name.secure.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN
listener.name.secure.scram-sha-256.sasl.jaas.config={scram} required;
listener.name.secure.scram-sha-512.sasl.jaas.config={scram} required;
listener.name.secure.plain.sasl.jaas.config={plain_module} required user_{user}="{password}" user_{barred}="{password}";
"""
_LOG_CONFIG = """\
status = WARN
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = OUT
"""


class NoBroker(Exception):
    """There is no broker and none can be started; one line that says what is missing."""


def can_start() -> bool:
    """Whether this machine has what starting a broker needs."""
    return shutil.which("mvn") is not None and shutil.which("java") is not None


def libraries() -> Path:
    """The folder of the broker's jars, fetched by Maven on first use and kept.

    Raises:
        NoBroker: Maven, Java or the artefacts are not to be had.
    """
    if not can_start():
        raise NoBroker("no Kafka broker: set AFFIDAVIT_TEST_KAFKA, or install Maven and a Java 17 runtime")
    folder = LIBRARIES / hashlib.sha256(POM.read_bytes()).hexdigest()[:16]
    if not folder.exists():
        part = LIBRARIES / f"part-{uuid.uuid4()}"
        part.mkdir(parents=True)
        command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={part}"]
        try:
            done = subprocess.run(
                [*command, "-DincludeScope=runtime"], capture_output=True, text=True, timeout=FETCH_LIMIT_S
            )
            if done.returncode != 0:
                raise NoBroker("no Kafka broker: Maven cannot fetch it, and AFFIDAVIT_TEST_KAFKA is not set")
            with contextlib.suppress(OSError):  # another test run was faster
                part.rename(folder)
        except subprocess.TimeoutExpired:
            raise NoBroker("no Kafka broker: Maven did not fetch it in time") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


@dataclass
class Broker:
    """A broker's addresses, and the process behind them unless it is somebody else's."""

    plain: str
    secure: str = ""
    proxy: Proxy | None = None
    """In front of the listener PROXIED, which sends clients to `proxied` for everything."""
    ca: Path = Path()
    manifest: Path = Path()
    """What its topics were made from."""
    folder: Path = Path()
    _command: list[str] = field(default_factory=list)
    _process: asyncio.subprocess.Process | None = None

    @property
    def proxied(self) -> str:
        """Where clients go that may lose the broker."""
        assert self.proxy is not None
        return self.proxy.address

    def variables(self, address: str | None = None) -> dict[str, str]:
        """What a worker's environment says of this broker."""
        return {
            "AFFIDAVIT_KAFKA_BOOTSTRAP": address or self.plain,
            "AFFIDAVIT_KAFKA_TOPICS": str(self.manifest),
        }

    @property
    def ours(self) -> bool:
        """Whether a test may stop it."""
        return bool(self._command)

    @property
    def runs(self) -> bool:
        """Whether our process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it if it does not run, on the same data and ports as before, and wait until it answers."""
        if self.runs:
            return
        with (self.folder / "broker.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        async with asyncio.timeout(START_LIMIT_S):
            while not await _answers(self.plain):
                if self._process.returncode is not None:
                    raise AssertionError(f"the broker ended: {(self.folder / 'broker.log').read_text()[-2000:]}")
                await asyncio.sleep(0.2)

    async def kill(self) -> None:
        """End it at once; its data stays."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()


async def _answers(address: str) -> bool:
    """Whether a broker is there that has registered itself."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    client = AIOKafkaClient(bootstrap_servers=address, request_timeout_ms=2000)
    try:
        async with asyncio.timeout(5):
            await client.bootstrap()
            return bool(client.cluster.brokers())
    except Exception:
        return False
    finally:
        await client.close()


@asynccontextmanager
async def broker(folder: Path) -> AsyncIterator[Broker]:
    """A broker for the length of a block.

    Raises:
        NoBroker: what it needs is not there.
    """
    jars = await asyncio.to_thread(libraries)
    ca = _certificate(folder)
    names = ("plain", "secure", "behind", "controller")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    async with proxied(f"{LOOPBACK}:{ports['behind']}") as proxy:
        proxy_port = int(proxy.address.rpartition(":")[2])
        started = await _formatted(folder, jars, {**ports, "proxied": proxy_port})
        started.proxy, started.ca = proxy, ca
        try:
            await started.start()
            yield started
        finally:
            await started.kill()


async def _formatted(folder: Path, jars: Path, ports: dict[str, int]) -> Broker:
    """A broker that has its configuration and an empty storage, and does not run yet."""
    security = "org.apache.kafka.common.security"
    config = folder / "server.properties"
    config.write_text(
        _CONFIG.format(
            host=LOOPBACK,
            folder=folder,
            user=USER,
            barred=BARRED,
            password=PASSWORD,
            scram=f"{security}.scram.ScramLoginModule",
            plain_module=f"{security}.plain.PlainLoginModule",
            **ports,
        )
    )
    (folder / "log4j2.properties").write_text(_LOG_CONFIG)
    java = [
        "java",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        "-cp",
        f"{jars}/*",
    ]
    scram = [f"{kind}=[name={name},password={PASSWORD}]" for kind in _SCRAM for name in (USER, BARRED)]
    formatted = await asyncio.create_subprocess_exec(
        *java,
        "kafka.tools.StorageTool",
        *("format", "--cluster-id", "Y2x1c3Rlci1vZi10ZXN0cw", "--config", str(config)),
        *(word for user in scram for word in ("--add-scram", user)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        preexec_fn=_die_with_parent,
    )
    try:
        output, _ = await asyncio.wait_for(formatted.communicate(), START_LIMIT_S)
    finally:
        if formatted.returncode is None:
            formatted.kill()
            await formatted.wait()
    assert formatted.returncode == 0, output.decode()
    plain, secure = (f"{LOOPBACK}:{ports[name]}" for name in ("plain", "secure"))
    return Broker(plain, secure, folder=folder, _command=[*java, "kafka.Kafka", str(config)])


_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def _certificate(folder: Path) -> Path:
    """Make a certificate for the loopback address that is its own authority; returns what clients trust."""
    folder.mkdir(parents=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker of a test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(LOOPBACK))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "broker.pem").write_bytes(private + certificate)
    (folder / "broker.pem").chmod(0o600)
    ca = folder / "ca.pem"
    ca.write_bytes(certificate)
    return ca
