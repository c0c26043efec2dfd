"""Whether a deployment is in order: one check for each thing that has to be, none of which needs another to succeed.

`local` looks at this machine (keys, store, bus), `stores` at an object store, `topics` at Kafka; `server` and
`sessions` ask Temporal; `report` runs checks and bounds them in time. No check prints or changes anything, and none
shows a secret.
"""
