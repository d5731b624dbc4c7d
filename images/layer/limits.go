package layer

import "cmp"

// Limits bound the cost of unpacking an image, since a layer of a few kilobytes
// can claim terabytes. A zero field means its default. A layer over a limit is
// refused with an [*Error].
type Limits struct {
	// Bytes is the uncompressed size of all layers of an image; zero is 32 GiB,
	// three times the largest toolchain images in common use.
	Bytes int64
	// FileBytes is the size of one file, including holes; zero is 8 GiB.
	FileBytes int64
	// Entries is the number of entries of all layers; zero is 1,000,000.
	Entries int
	// Ratio is the compression ratio of a layer that is larger than RatioFloor;
	// zero is 200. Files of zeros compress by up to 1,000.
	Ratio int64
	// RatioFloor is the size in bytes up to which Ratio doesn't apply; zero is
	// 256 MiB.
	RatioFloor int64
	// PathBytes is the length of a name in the image and of a symlink's target;
	// zero is 4096, Linux's PATH_MAX.
	PathBytes int
	// Depth is the number of directories above an entry; zero is 256.
	Depth int
	// Layers is the number of layers per image; zero is 512. Docker's limit is
	// 127.
	Layers int
	// Top is the number of entries in the root directory, each of which costs a
	// container a mount; zero is 128.
	Top int
	// MetadataBytes is the size of a manifest, an index or a configuration;
	// zero is 8 MiB. Registries accept 4 MiB.
	MetadataBytes int64
}

// WithDefaults returns l with the defaults for zero fields.
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
