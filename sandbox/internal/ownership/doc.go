// Package ownership records which Caisson process owns what is made on the
// host, and keeps the list of what a session made, so that another Caisson can
// remove it.
//
// An [Identity] is the PID, start time, boot and PID namespace of one process.
// It is written to the labels of containers ([Identity.Labels]) and to the
// [CleanupList] of a session: one small file below the state directory, to
// which each thing is added before it is made. Another process determines the
// [Identity.Fate] of the owner and removes what is in the lists of dead owners
// ([Sweep]).
//
// The content of a cleanup list is not trusted: names come from a closed
// alphabet, directories are resolved below the session's own directory by the
// kernel, and a placeholder is removed only if its inode and content are the
// recorded ones. A cleanup list that can't be read is set aside and never acted
// on.
package ownership
