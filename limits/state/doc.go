// Package state keeps files that outlive a process and may be shared by several: it
// locks, reads, replaces and expires them, and refuses directories that other users
// could change. Each store decides on its layout and on what its files mean.
package state
