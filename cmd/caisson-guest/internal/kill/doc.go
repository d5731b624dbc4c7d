// Package kill finds every process that a command started, kills it, and proves
// that none is left.
//
// Process groups and parent links both miss a daemon that forked twice and made
// its own session. But no process can shed a supplementary group: each command
// gets its own, its descendants inherit it, and without CAP_SETGID and user
// namespaces none can drop it. So a command's processes are those whose
// /proc/PID/status names its group. A scan signals all it finds and is repeated
// until it finds nothing.
//
// Mostly one command runs at a time. Then everything in the container except
// the guest is its, and one kill(-1) reaches all of it. When nothing is left,
// the guest, which inherits orphans, has no children. No scan is needed.
//
// In a container with only one id, where setgroups is refused, a command runs
// under a shim that is a child subreaper, and its processes are the shim's
// descendants.
package kill
