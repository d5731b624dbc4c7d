// Package memory provides the tools with which an agent keeps short notes about a
// workspace from one session to the next, and the store of these notes.
//
// The notes are part of Caisson's state on the host, in one directory per workspace
// and outside every workspace. The tools can't reach workspace files: they have
// only their [Store], and no input chooses its file name. The notes were written by
// a model that may have been misled. They are data, and are wrapped as such
// wherever a model sees them.
package memory
