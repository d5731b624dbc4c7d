// Package ownership records which Caisson process owns the things that are made
// on the host, and lists what each session made, so that another Caisson can
// remove it.
//
// An [Identity] is the PID, start time, boot and PID namespace of one process.
// It is written to containers' labels ([Identity.Labels]) and to the session's
// [CleanupList], a small file below the state directory to which each thing is
// added before it is made. Another process determines the owner's
// [Identity.Fate] and removes everything in the lists of dead owners ([Sweep]).
//
// A cleanup list's content is not trusted: names come from a closed alphabet,
// the kernel resolves directories below the session's own directory, and a
// placeholder is removed only if its inode and content are as recorded. A list
// that can't be read is set aside and never acted on.
package ownership
