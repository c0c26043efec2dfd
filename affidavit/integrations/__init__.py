"""Adapters for agent frameworks, each an extra of its own. They share `affidavit.modelcalls`; docs/integrations.md."""
