// Package kill finds every process that a command started, ends it, and proves
// that none is left.
//
// Process groups and parent links both miss a daemon that forked twice and
// made its own session. What no process can shed is a supplementary group:
// each command gets one of its own, its descendants inherit it, and without
// CAP_SETGID and user namespaces none can drop it. So the processes of a
// command are those whose /proc/PID/status names its group. A scan signals
// what it finds and is repeated until it finds nothing.
//
// Where a container has one id only and setgroups is refused, a command runs
// under a shim that is a child subreaper, and its processes are the shim's
// descendants.
package kill
