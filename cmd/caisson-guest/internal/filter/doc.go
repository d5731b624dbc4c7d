// Package filter makes the second seccomp filter of every command, in addition
// to the runtime's profile.
//
// The profile below it is an allowlist, so this filter lists refused calls.
// gVisor applies no runtime's profile, so there it is the only filter, and it
// repeats the important refusals. It answers ENOSYS to clone3, whose flags no
// filter can see (C libraries then use clone). It answers EPERM to new
// namespaces in any way, to tracing and reading other processes, and to the
// kernel interfaces through which sandboxes are most often broken. It refuses
// socket families except local, internet and route netlink.
package filter
