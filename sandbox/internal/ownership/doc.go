// Package owner says to which Caisson process a thing on the host belongs, and
// keeps the list of what a session made so that another Caisson can undo it.
//
// An [Identity] is pid, start time, boot and PID namespace of one process. It
// is written into the labels of containers ([Identity.Labels]) and into the
// [CleanupList] of a session: one small file below the state folder in which each
// thing is noted before it is made. Whoever comes later asks [Identity.Fate]
// and undoes the cleanup lists of the dead ([Sweep]).
//
// Nothing that a cleanup list says is believed: names come from a closed alphabet,
// folders are resolved below the session's own folder by the kernel, and a
// placeholder is removed only where its inode and content are those that were
// noted. A cleanup list that can't be read is set aside, never acted on.
package ownership
