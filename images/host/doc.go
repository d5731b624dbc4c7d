// Package host describes root filesystems that are on this machine already: the
// image host, which binds the machine's own programs, unpacked directories, and
// the trees of a store. It also writes the skeletons that these are mounted on.
//
// It reads directories and writes nothing but skeletons.
package host
