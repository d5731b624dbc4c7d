package images

// RootFS is a root filesystem that a backend can mount read-only. It is a
// value: nothing in it has to be closed.
type RootFS struct {
	Reference Reference
	// Digest is "sha256:" and 64 hex digits that name the content. For host it
	// names the layout and the versions that it could read, for rootfs the
	// tree's names, modes, sizes and times; not every byte.
	Digest string
	// Dir is the folder that a rootfs reference names; empty for host. What is
	// in it is mounted through Binds, so nothing is ever written to it.
	Dir string
	// Dirs, Links, Files and Binds make up the root, in this order, over an
	// empty folder.
	Dirs     []Dir
	Symlinks []Symlink
	Files    []File
	Binds    []Bind
	// Masks are folders below a bind that the backend hides under an empty,
	// read-only tmpfs.
	Masks []string
	// Path lists the folders of the host's PATH that the image has, in its
	// order. It is what a command's PATH may be extended by.
	Path []string
	// Env is what the image's configuration declares as environment, as
	// NAME=value; nil for host and rootfs. See sandbox.Environment.
	Env []string
	// Volumes are the folders that the image declares as VOLUME: a backend
	// gives each a small tmpfs and never a volume of the host's disk.
	Volumes []string
	// Warnings are facts that a user should see, such as a toolchain on PATH
	// that the image can't contain.
	Warnings []string
}

// Dir is a folder of the skeleton, owned by root.
type Dir struct {
	Path string // absolute in the container
	Mode uint32 // permission bits and sticky, such as 01777
}

// Symlink is a symbolic link of the skeleton.
type Symlink struct {
	Path   string // absolute in the container
	Target string
}

// File is a synthetic file of the skeleton, owned by root, mode 0644.
type File struct {
	Path    string // absolute in the container
	Content []byte
}

// Bind is a host folder or file that is bound read-only, non-recursively.
type Bind struct {
	Source string // absolute on the host
	Path   string // absolute in the container; the skeleton holds its mount point
	IsDir  bool
}
