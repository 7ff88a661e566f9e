#!/bin/sh
# Run a command with passwords from files: NAME_FILE names the file of NAME. A password in a command line, or in the
# address of a database, would be shown by `ps` and repeated in errors.
set -eu
for name in PGPASSWORD AWS_SECRET_ACCESS_KEY; do
    eval "file=\${${name}_FILE:-}"
    [ -n "$file" ] || continue
    if ! [ -r "$file" ]; then
        echo "with_secrets: $file: cannot be read; expected the file with $name; see ${name}_FILE" >&2
        exit 2
    fi
    value=$(cat "$file")
    export "$name=$value"
done
exec "$@"
