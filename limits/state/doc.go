// Package state keeps files that outlive a process and that several processes may share:
// it locks, reads, replaces and expires them, and refuses directories that other users
// could change. The layout of a store and what its files mean is up to the store.
package state
