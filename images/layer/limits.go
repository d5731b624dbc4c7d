package layer

import "cmp"

// Limits bound what unpacking an image may cost, since a layer of a few
// kilobytes can claim terabytes. Zero takes the default of a field; a layer
// over a limit is refused with a [*Error].
type Limits struct {
	// Bytes are the content of all layers of an image together, uncompressed;
	// zero is 32 GiB, three times the largest toolchain images in common use.
	Bytes int64
	// FileBytes is the size of one file, holes included; zero is 8 GiB.
	FileBytes int64
	// Entries are the entries of all layers together; zero is 1,000,000.
	Entries int
	// Ratio is how much larger a layer may be than what it was read from, once
	// it is over RatioFloor; zero is 200. Files of zeros compress by up to 1,000.
	Ratio int64
	// RatioFloor is the size in bytes up to which a layer may be anything; zero is
	// 256 MiB.
	RatioFloor int64
	// PathBytes is the length of a name within the image and of a link's
	// target; zero is 4096, Linux's PATH_MAX.
	PathBytes int
	// Depth are the folders above an entry; zero is 256.
	Depth int
	// Layers of one image; zero is 512. Docker's own bound is 127.
	Layers int
	// Top are the entries of the root folder, of which each costs a container
	// a mount; zero is 128.
	Top int
	// MetadataBytes bounds a manifest, an index and a configuration; zero is
	// 8 MiB. Registries take 4 MiB.
	MetadataBytes int64
}

// withDefaults fills in what is zero.
func (l Limits) WithDefaults() Limits {
	return Limits{
		Bytes:         cmp.Or(l.Bytes, 32<<30),
		FileBytes:     cmp.Or(l.FileBytes, 8<<30),
		Entries:       cmp.Or(l.Entries, 1_000_000),
		Ratio:         cmp.Or(l.Ratio, 200),
		RatioFloor:    cmp.Or(l.RatioFloor, 256<<20),
		PathBytes:     cmp.Or(l.PathBytes, 4096),
		Depth:         cmp.Or(l.Depth, 256),
		Layers:        cmp.Or(l.Layers, 512),
		Top:           cmp.Or(l.Top, 128),
		MetadataBytes: cmp.Or(l.MetadataBytes, 8<<20),
	}
}
