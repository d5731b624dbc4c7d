// Package images turns a reference to a root filesystem into what a backend
// can mount, and names its content by digest.
//
// [Host] and [Folder] describe what is on this machine already. A [Store]
// fetches, builds or unpacks everything else and keeps it below one folder.
//
// It is a leaf (rank 0). It writes only below the folder that a store is given,
// speaks to no engine but through the [Engine] that it is given, and runs no
// program but the builder that its options name (and a credential helper that
// the user's Docker configuration names). Registries, archives and layers are
// hostile input: see docs/decisions/0081.
package images
