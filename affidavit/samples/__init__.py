"""Sample agent runs in ATIF, as package data; `affidavit demo` replays one."""
