package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/caisson-run/caisson/images/internal/imagetest"
)

// header is a tar header that claims 8 GiB without any content.
func header(kind byte) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "p", Size: 8<<30 - 1, Mode: 0o644}); err != nil {
		panic(err)
	}
	block := b.Bytes()[:512]
	block[156] = kind
	copy(block[148:156], "        ")
	total := 0
	for _, c := range block {
		total += int(c)
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", total))
	return block
}

// Whatever size is claimed, unpacking allocates little.
func TestClaimsCostNoMemory(t *testing.T) {
	const bound = 160 << 20 // zstd's window, and a little
	// A zstd frame header with a window of 2 GiB, and one of 1 GiB of content.
	window := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00}
	var long bytes.Buffer
	w, err := zstd.NewWriter(&long, zstd.WithWindowSize(128<<20))
	must(t, err)
	if _, err := io.CopyN(w, imagetest.Zeros{}, 300<<20); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	sparse10 := "1000000000\n" + strings.Repeat("0\n", 250)
	pax := func(records map[string]string, content string) []byte {
		return imagetest.Archive(t, imagetest.Item{Header: tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o644, PAXRecords: records, Format: tar.FormatPAX}, Content: content})
	}
	for what, data := range map[string][]byte{
		"a zstd window of 2 GiB":             window,
		"zstd that becomes 300 MiB":          long.Bytes(),
		"an extended header of 8 GiB":        append(header('x'), make([]byte, 4096)...),
		"a global header of 8 GiB":           append(header('g'), make([]byte, 4096)...),
		"a long name of 8 GiB":               append(header('L'), make([]byte, 4096)...),
		"a file of 8 GiB that isn't there":   append(header('0'), make([]byte, 4096)...),
		"a sparse map of a billion entries":  renamed(pax(map[string]string{"XXX.sparse.major": "1", "XXX.sparse.minor": "0", "XXX.sparse.realsize": "10", "XXX.sparse.name": "f"}, sparse10)),
		"a name of half a megabyte":          imagetest.Archive(t, imagetest.File(strings.Repeat("x/", 250<<10)+"f", "")),
		"attributes of half a megabyte each": pax(map[string]string{"SCHILY.xattr.user.a": strings.Repeat("x", 500<<10)}, ""),
	} {
		before := allocated()
		_, err := unpackAll(t, t.TempDir(), tight, anyLayerOf(data))
		if grown := allocated() - before; grown > bound {
			t.Errorf("%s: %d MiB were allocated", what, grown>>20)
		}
		layerErr := &Error{}
		if what != "attributes of half a megabyte each" && !errors.As(err, &layerErr) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// anyLayerOf is a layer whose digests nobody knows beforehand.
func anyLayerOf(data []byte) Layer {
	l := layerOf(data, data)
	l.Known = false
	return l
}

// renamed turns records that the writer takes into ones that it refuses.
func renamed(data []byte) []byte {
	return bytes.ReplaceAll(data, []byte("XXX.sparse"), []byte("GNU.sparse"))
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
