// Package filter makes the second seccomp filter, the one that every command
// runs under in addition to the runtime's profile.
//
// It is a list of what is refused, because the profile below it is the
// allowlist; gVisor applies no profile of a runtime's, so that there this is
// the only one, and it repeats what matters. It answers ENOSYS to clone3,
// whose flags no filter can see (the C libraries then use clone), and EPERM to
// new namespaces by any way, to tracing and reading other processes, to
// socket families beyond local, internet and route netlink, and to the
// kernel interfaces that sandboxes are most often broken through.
package filter
