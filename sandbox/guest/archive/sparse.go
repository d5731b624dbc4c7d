package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	// minHoles is how many bytes of holes a file needs for an archive to omit
	// them.
	minHoles = 1 << 20
	// maxExtents bounds the parts of a file between holes. The last part covers
	// the rest of the file.
	maxExtents = 10_000
)

// maxSearched bounds how much of a file is searched for holes, in bytes. If the
// file system doesn't know its holes, reading a command's file of 8 EiB takes
// forever.
var maxSearched int64 = 16 << 30

// extent is a part of a file that has data.
type extent struct{ offset, length int64 }

// Writer writes an archive without the holes of files, in the format that GNU
// tar calls PAX 0.1. Package archive/tar can read it but not write it.
type Writer struct {
	*tar.Writer
	w io.Writer
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{tar.NewWriter(w), w} }

// AddFile adds a regular file with a header that has its size. If the file has
// become shorter, zeros fill the rest.
func (w *Writer) AddFile(h *tar.Header, f *os.File) error {
	data, err := findData(f, h.Size)
	if err != nil {
		return err
	}
	var parts []io.Reader
	for _, e := range data {
		parts = append(parts, io.LimitReader(io.MultiReader(io.NewSectionReader(f, e.offset, e.length), zeros{}), e.length))
	}
	return w.addPacked(h, data, io.MultiReader(parts...))
}

// Copy adds the current entry of another archive's reader, whose header may
// have been changed.
func (w *Writer) Copy(h *tar.Header, in *tar.Reader) error {
	data := extentsOf(h)
	var parts []io.Reader
	at := int64(0)
	for _, e := range data {
		parts = append(parts, skipper{io.LimitReader(in, e.offset-at)}, io.LimitReader(in, e.length))
		at = e.offset + e.length
	}
	return w.addPacked(h, data, io.MultiReader(parts...))
}

// CopyPacked adds a file of another archive, whose bytes without holes it reads
// from packed.
func (w *Writer) CopyPacked(h *tar.Header, packed io.Reader) error {
	return w.addPacked(h, extentsOf(h), packed)
}

// skipper returns no bytes, but reads another reader to its end.
type skipper struct{ io.Reader }

func (s skipper) Read([]byte) (int, error) {
	if _, err := io.Copy(io.Discard, s.Reader); err != nil {
		return 0, err
	}
	return 0, io.EOF
}

// addPacked adds an entry with the content, without holes, from packed.
func (w *Writer) addPacked(h *tar.Header, data []extent, packed io.Reader) error {
	if h.Typeflag != tar.TypeReg || len(data) == 1 && data[0] == (extent{0, h.Size}) {
		if err := w.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		return copyAll(w, packed, h.Size)
	}
	// archive/tar ignores records with these keys, and sorts the others. So
	// write them with keys of the same length that sort first, then replace the
	// keys. The untrusted name comes last.
	const prefix, numbers, parts, name = "GNU.sparse.", "@NU.sparse.", "ANU.sparse.", "BNU.sparse."
	var text []string
	size := int64(0)
	for _, e := range append(data, extent{h.Size, 0}) {
		text = append(text, strconv.FormatInt(e.offset, 10), strconv.FormatInt(e.length, 10))
		size += e.length
	}
	header := bytes.Buffer{}
	err := tar.NewWriter(&header).WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: "GNUSparseFile.0", Size: size, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime, Format: tar.FormatPAX,
		PAXRecords: map[string]string{
			numbers + "numblocks": strconv.Itoa(len(text) / 2), numbers + "size": strconv.FormatInt(h.Size, 10), parts + "map": strings.Join(text, ","), name + "name": h.Name,
		},
	})
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return err
	}
	block := header.Bytes()
	for _, key := range []string{numbers, numbers, parts, name} {
		block = bytes.Replace(block, []byte(key), []byte(prefix), 1)
	}
	if _, err := w.w.Write(block); err != nil {
		return err
	}
	if err := copyAll(w.w, packed, size); err != nil {
		return err
	}
	const padding = 512
	_, err = w.w.Write(make([]byte, (padding-size%padding)%padding))
	return err
}

func copyAll(w io.Writer, r io.Reader, size int64) error {
	_, err := io.CopyN(w, r, size)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// extentsOf returns the data of an entry that was read: the whole file, unless
// addPacked wrote it with holes.
func extentsOf(h *tar.Header) []extent {
	whole := []extent{{0, h.Size}}
	list := strings.Split(h.PAXRecords["GNU.sparse.map"], ",")
	var data []extent
	end := int64(0)
	for ; len(list) > 1; list = list[2:] {
		offset, err := strconv.ParseInt(list[0], 10, 64)
		length, lengthErr := strconv.ParseInt(list[1], 10, 64)
		if err != nil || lengthErr != nil || offset < end || length < 0 || length > h.Size-offset {
			return whole
		}
		end = offset + length
		if length > 0 {
			data = append(data, extent{offset, length})
		}
	}
	if h.PAXRecords["GNU.sparse.map"] == "" {
		return whole
	}
	return data
}

// findData returns the parts of a file that have data, or all of it if there
// are few holes. Blocks of zeros count as holes, because not every file system
// knows its holes.
func findData(f *os.File, size int64) ([]extent, error) {
	whole := []extent{{0, size}}
	if size < minHoles {
		return whole, nil
	}
	var data []extent
	holes, end := size, int64(0) // end is where the current data ends
	searched := int64(0)
	block := make([]byte, blockSize)
	for at := int64(0); at < size; {
		if at >= end {
			if at, end = nextData(f, at, size); at >= size {
				break
			}
		}
		b := block[:min(blockSize, end-at)]
		n, err := f.ReadAt(b, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		next := at + int64(len(b))
		searched += int64(len(b))
		rest := searched > maxSearched
		switch last := len(data) - 1; {
		case !rest && isZero(b[:n]):
		case !rest && last >= 0 && at-(data[last].offset+data[last].length) < blockSize:
			holes -= next - (data[last].offset + data[last].length)
			data[last].length = next - data[last].offset
		case rest || last+2 == maxExtents:
			data, holes, next = append(data, extent{at, size - at}), holes-(size-at), size
		default:
			data, holes = append(data, extent{at, int64(len(b))}), holes-int64(len(b))
		}
		at = next
	}
	if holes < minHoles {
		return whole, nil
	}
	return data, nil
}
