// Package workmount turns an open workspace directory into the mounts of a
// container. It also decides which user commands run as, so that files they
// create belong to the workspace's owner.
//
//	Caisson runs as   workspace owned by   mounts                      commands run as
//	root              anyone               staged, id-mapped           10001:10001
//	root, no id maps  not root             staged                      the owner
//	root, no id maps  root                 refused                     -
//	uid U             uid U                by path, compared later     U
//	uid U             another              refused, unless allowed     U
//
// A staged mount is a clone of the held directory, made with open_tree(2) and
// given its flags and id map with mount_setattr(2). It is attached below the
// session's own directory, where no other process can write, so the path that
// the engine or runtime gets can't be swapped. If Caisson may not mount, it
// hands out the directory's own path. Each [Bind] then carries device and
// inode, to compare with what the guest sees.
//
// The id map of a staged mount covers all ids and swaps the owner and 10001,
// uid and gid apart. Files of other ids keep them, setgid directories work, and
// the map can be inverted, which gVisor's gofer needs. It leaves out the
// identities of commands other than the agent's, so these can't create files
// through it.
//
// Files in the workspace are opened below the held descriptor with openat2(2),
// without symlinks and without crossing mounts. .git and .caisson are bound on
// themselves, so that commands can neither write nor rename them.
package workmount
