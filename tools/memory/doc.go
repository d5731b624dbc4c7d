// Package memory holds the tools by which an agent keeps short notes about a
// workspace from one session to the next, and the store that they are in.
//
// The notes are state of Caisson's own on the host, in one folder a workspace
// and outside every workspace. The tools have no way to a file of the
// workspace: they know no reader and no writer of it, only their [Store], whose
// file's name no input chooses. What the notes say was written by a model that
// may have been misled: it is data, and is wrapped as such wherever a model
// sees it.
package memory
