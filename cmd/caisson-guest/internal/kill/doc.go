// Package kill finds every process that a command started, ends it, and proves
// that none is left.
//
// Process groups and parent symlinks both miss a daemon that forked twice and
// made its own session. What no process can shed is a supplementary group:
// each command gets one of its own, its descendants inherit it, and without
// CAP_SETGID and user namespaces none can drop it. So the processes of a
// command are those whose /proc/PID/status names its group. A scan signals
// what it finds and is repeated until it finds nothing.
//
// Mostly one command runs at a time. Everything in the container but the guest
// is then its, one kill(-1) reaches all of it, and the guest, to which orphans
// fall, has no children when nothing is left: no scan is needed.
//
// Where a container has one id only and setgroups is refused, a command runs
// under a shim that is a child subreaper, and its processes are the shim's
// descendants.
package kill
