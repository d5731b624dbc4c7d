// Package host describes root filesystems that this machine already has: the
// image host, which binds the machine's own programs, unpacked directories, and
// a store's trees. It writes only the skeletons that these are mounted on.
package host
