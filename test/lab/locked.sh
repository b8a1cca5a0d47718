#!/bin/sh
# Runs a shell, as make does for a recipe, while it has the lab to itself. The programs of the lab do
# not inherit the lock.
file=/var/lock/purelb-lab.lock
flock -n -o "$file" true || echo "another command uses the lab ($file is locked): waiting for its end" >&2
exec flock -o "$file" /bin/sh "$@"
