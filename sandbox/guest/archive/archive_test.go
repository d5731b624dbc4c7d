package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// describe returns a line for each name below dir: type, permission bits, time,
// content, and the file's other names.
func describe(t testing.TB, dir string) []string {
	t.Helper()
	var list []string
	inodes := map[uint64]string{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		line := fmt.Sprintf("%q %s", rel, info.Mode())
		st := info.Sys().(*syscall.Stat_t)
		switch info.Mode().Type() {
		case fs.ModeSymlink:
			target, _ := os.Readlink(p)
			line += fmt.Sprintf(" -> %q", target)
		case 0:
			data, err := os.ReadFile(p)
			must(t, err)
			line += fmt.Sprintf(" %s %d %.40q", info.ModTime().UTC().Format(time.RFC3339Nano), len(data), data)
			if st.Nlink > 1 {
				line += " = " + cmp.Or(inodes[st.Ino], rel)
				inodes[st.Ino] = cmp.Or(inodes[st.Ino], rel)
			}
		case fs.ModeDir:
			line += info.ModTime().UTC().Format(" " + time.RFC3339Nano)
		}
		list = append(list, line)
		return nil
	}))
	return list
}

func pack(t testing.TB, path string, o PackOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, Pack(&b, path, o))
	return b.Bytes()
}

// TestPackAndUnpack checks that any tree arrives as it was.
func TestPackAndUnpack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		top := t.TempDir()
		from, to := filepath.Join(top, "from"), filepath.Join(top, "to")
		must(t, os.Mkdir(from, 0o755))
		must(t, os.Mkdir(to, 0o700))
		dirs, files := []string{from}, []string(nil)
		name := rapid.OneOf(rapid.SampledFrom([]string{"a", "b", "\xff\xfe", "new\nline", "ümläut", `back\slash`, " ", "-rf", "...", strings.Repeat("x", 255)}))
		for range rapid.IntRange(0, 30).Draw(rt, "entries") {
			p := filepath.Join(rapid.SampledFrom(dirs).Draw(rt, "parent"), name.Draw(rt, "name"))
			if _, err := os.Lstat(p); err == nil || len(p) > 3000 {
				continue
			}
			switch rapid.IntRange(0, 5).Draw(rt, "type") {
			case 0, 1:
				must(t, os.Mkdir(p, 0o755))
				dirs = append(dirs, p)
			case 2:
				must(t, os.Symlink(rapid.SampledFrom([]string{"a", "../..", "/etc/passwd", "\xff", strings.Repeat("y", 300)}).Draw(rt, "target"), p))
			case 3:
				if len(files) > 0 {
					must(t, os.Link(rapid.SampledFrom(files).Draw(rt, "linked"), p))
				}
			default:
				size := rapid.SampledFrom([]int{0, 1, 511, 512, 513, 3 * blockSize}).Draw(rt, "size")
				data := bytes.Repeat([]byte{rapid.Byte().Draw(rt, "byte")}, size)
				must(t, os.WriteFile(p, data, fs.FileMode(rapid.SampledFrom([]int{0o400, 0o644, 0o755, 0o666}).Draw(rt, "mode"))))
				must(t, os.Chtimes(p, time.Time{}, time.Unix(rapid.Int64Range(0, 1<<32-1).Draw(rt, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(rt, "nanoseconds"))))
				files = append(files, p)
			}
		}
		for i, d := range slices.Backward(dirs) {
			must(t, os.Chtimes(d, time.Time{}, time.Unix(int64(1000+i), 5)))
			must(t, os.Chmod(d, fs.FileMode(rapid.SampledFrom([]int{0o755, 0o700, 0o555, 0o777}).Draw(rt, "mode"))))
		}
		must(t, Unpack(bytes.NewReader(pack(t, from, PackOptions{Name: "."})), to, Bounds{}))
		if d := gocmp.Diff(describe(t, from), describe(t, to)); d != "" {
			rt.Errorf("packed and unpacked (-from +to):\n%s", d)
		}
		for _, d := range slices.Concat(dirs, []string{to}) {
			_ = os.Chmod(d, 0o755)
		}
	})
}

// TestPackNames checks that the archive's name is the path's last name, or as
// asked.
func TestPackNames(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o644))
	must(t, os.Symlink("file", filepath.Join(dir, "link")))
	for _, c := range []struct{ path, name, want string }{
		{dir + "/file", "", "file"},
		{dir + "/file", "other/name", "other/name"},
		{dir + "/link", "", "link"},
		{dir + "//file", "", "file"},
		{dir, ".", "./ file link"},
		{dir, "top", "top/ top/file top/link"},
		{dir + "/.", "", filepath.Base(dir) + "/ " + filepath.Base(dir) + "/file " + filepath.Base(dir) + "/link"},
	} {
		var got []string
		in := tar.NewReader(bytes.NewReader(pack(t, c.path, PackOptions{Name: c.name})))
		for h, err := in.Next(); err == nil; h, err = in.Next() {
			got = append(got, h.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("pack %s as %q: %q, want %q", c.path, c.name, got, c.want)
		}
	}
	if err := Pack(io.Discard, dir+"/none", PackOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing packed: %v", err)
	}
}

// TestPackLeavesOut checks that special and unreadable files are left out if
// the caller wants it, and an error otherwise.
func TestPackLeavesOut(t *testing.T) {
	dir := t.TempDir()
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "z"), nil, 0o644))
	if err := Pack(io.Discard, dir, PackOptions{}); !errors.Is(err, ErrSpecial) {
		t.Errorf("a pipe: %v", err)
	}
	var left []string
	text := pack(t, dir, PackOptions{Name: "d", LeaveOut: func(name string, err error) error {
		left = append(left, fmt.Sprint(name, errors.Is(err, ErrSpecial)))
		return nil
	}})
	if len(left) != 1 || left[0] != "d/pipetrue" || !bytes.Contains(text, []byte("d/z")) {
		t.Errorf("left out %q", left)
	}
	if err := Pack(io.Discard, filepath.Join(dir, "pipe"), PackOptions{LeaveOut: func(string, error) error { return nil }}); !errors.Is(err, ErrSpecial) {
		t.Errorf("a pipe alone: %v", err)
	}
	if _, err := openRegular(filepath.Join(dir, "pipe")); !errors.Is(err, ErrSpecial) { // it took a file's place
		t.Errorf("opened a pipe: %v", err)
	}
	must(t, os.Symlink(".", filepath.Join(dir, "link")))
	for _, name := range []string{"link", "pipe"} { // it took a directory's place
		if err := readDirectory(filepath.Join(dir, name), func(fs.DirEntry) error { return nil }); !errors.As(err, new(unreadable)) {
			t.Fatalf("read %s as a directory: %v", name, err)
		}
	}
}

// TestBounds checks that neither side writes more than its bounds.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	for i := range 5 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), bytes.Repeat([]byte("x"), 100), 0o644))
	}
	whole := pack(t, dir, PackOptions{Name: ".", Bounds: Bounds{Entries: 6, Bytes: 500}})
	for _, b := range []Bounds{{Entries: 5}, {Bytes: 499}} {
		if err := Pack(io.Discard, dir, PackOptions{Bounds: b}); !errors.Is(err, ErrBound) {
			t.Errorf("packed within %+v: %v", b, err)
		}
		to := t.TempDir()
		if err := Unpack(bytes.NewReader(whole), to, b); !errors.Is(err, ErrBound) {
			t.Errorf("unpacked within %+v: %v", b, err)
		}
		if n := len(describe(t, to)); n != 5 {
			t.Errorf("%+v: %d names", b, n)
		}
	}
	sparse := filepath.Join(dir, "sparse")
	must(t, os.WriteFile(sparse, []byte("x"), 0o644))
	must(t, os.Truncate(sparse, 10<<20))
	for bytes, want := range map[int64]error{1 << 20: nil, 512 << 10: ErrBound} {
		if err := Unpack(strings.NewReader(string(pack(t, sparse, PackOptions{}))), t.TempDir(), Bounds{Bytes: bytes}); !errors.Is(err, want) {
			t.Errorf("a sparse file within %d bytes: %v", bytes, err)
		}
	}
}

func TestBoundedWriter(t *testing.T) {
	var out bytes.Buffer
	w := &BoundedWriter{W: &out, Left: 5}
	for i, want := range []error{nil, nil, ErrBound, ErrBound} {
		if _, err := w.Write([]byte("ab")); !errors.Is(err, want) {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if out.String() != "abab" || !errors.Is(w.Err, ErrBound) {
		t.Errorf("%q, %d left", out.String(), w.Left)
	}
}

func TestPackGrowingAndShrinking(t *testing.T) {
	for _, size := range []int64{3, 3000} {
		dir := t.TempDir()
		name := filepath.Join(dir, "f")
		must(t, os.WriteFile(name, make([]byte, 1000), 0o644))
		info, err := os.Lstat(name)
		must(t, err)
		must(t, os.Truncate(name, size))
		var b bytes.Buffer
		p := packer{tar: NewWriter(&b), linked: map[fileID]string{}}
		must(t, p.addEntry(name, "f", info))
		must(t, p.tar.Close())
		to := t.TempDir()
		must(t, Unpack(&b, to, Bounds{}))
		if info, err := os.Stat(filepath.Join(to, "f")); err != nil || info.Size() != 1000 {
			t.Errorf("file of now %d bytes: %v, %v", size, info, err)
		}
	}
}

func write(t testing.TB, list ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = 1
		}
		must(t, w.WriteHeader(&h))
		_, err := w.Write(bytes.Repeat([]byte("y"), int(h.Size)))
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func file(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}
}

func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
}

func hostile(t testing.TB) map[string][]byte {
	dir := tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o755}
	return map[string][]byte{
		"absolute":                write(t, file("/tmp/x")),
		"dots":                    write(t, file("../outside/x")),
		"dots inside":             write(t, file("a/../../outside/x")),
		"the directory as a file": write(t, file(".")),
		"through a symlink":       write(t, link("l", "../outside"), file("l/x")),
		"through its own":         write(t, dir, link("d/l", "."), file("d/l/x")),
		"through an absolute":     write(t, link("l", "/tmp"), file("l/x")),
		"directory at a symlink":  write(t, link("l", "../outside"), tar.Header{Typeflag: tar.TypeDir, Name: "l", Mode: 0o777}),
		"through an existing":     write(t, file("existing/x")),
		"hard link out":           write(t, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside/secret"}),
		"hard link absolute":      write(t, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"}),
		"hard link to the user's": write(t, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "mine"}),
		"hard link to itself":     write(t, file("h"), tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "h"}),
		"hard link to a symlink":  write(t, link("l", "../outside/secret"), tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "l"}),
		"hard link to a replaced": write(t, file("f"), link("f", "../outside/secret"), tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "f"}),
		"device":                  write(t, tar.Header{Typeflag: tar.TypeChar, Name: "c", Mode: 0o666, Devmajor: 1, Devminor: 3}),
		"pipe":                    write(t, tar.Header{Typeflag: tar.TypeFifo, Name: "p", Mode: 0o666}),
		"file over a directory":   write(t, dir, file("d")),
		"below a file":            write(t, file("f"), file("f/x")),
		"long":                    write(t, file(strings.Repeat("a/", 3000)+"x")),
		"empty target":            write(t, link("l", "")),
	}
}

// place makes a directory to unpack an archive into, beside another one that
// must stay as it is.
func place(t testing.TB) (top, to string) {
	t.Helper()
	top = t.TempDir()
	to = filepath.Join(top, "to")
	for _, d := range []string{"outside", "to"} {
		must(t, os.Mkdir(filepath.Join(top, d), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(top, "outside", "secret"), []byte("secret"), 0o600))
	must(t, os.Symlink("../outside", filepath.Join(to, "existing")))
	must(t, os.WriteFile(filepath.Join(to, "mine"), []byte("mine"), 0o600))
	return top, to
}

// TestUnpackRefuses checks that a hostile archive is refused, and nothing
// outside changes.
func TestUnpackRefuses(t *testing.T) {
	for name, text := range hostile(t) {
		top, to := place(t)
		before := describe(t, filepath.Join(top, "outside"))
		if err := Unpack(bytes.NewReader(text), to, Bounds{}); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", name, err)
		}
		if d := gocmp.Diff(before, describe(t, filepath.Join(top, "outside"))); d != "" {
			t.Errorf("%s changed what is outside:\n%s", name, d)
		}
		for _, p := range []string{filepath.Join(to, "p"), filepath.Join(to, "c")} {
			if _, err := os.Lstat(p); err == nil {
				t.Errorf("%s made a special file", name)
			}
		}
	}
}

// TestUnpackAcceptsOnlyWhatWasAskedFor checks that an archive contains only the
// requested name and names below it.
func TestUnpackAcceptsOnlyWhatWasAskedFor(t *testing.T) {
	dir := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755} }
	for name, c := range map[string]struct {
		name string
		text []byte
		want bool
	}{
		"the file":           {"r", write(t, file("r")), true},
		"a file beside it":   {"r", write(t, file("r"), file(".bashrc")), false},
		"a file before it":   {"r", write(t, file(".bashrc"), file("r")), false},
		"below a file":       {"r", write(t, file("r"), dir("r"), file("r/x")), false},
		"again":              {"r", write(t, dir("r"), file("r")), false},
		"below a symlink":    {"r", write(t, link("r", "."), file("r/x")), false},
		"a longer name":      {"r", write(t, dir("r"), file("rr")), false},
		"the directory":      {"r", write(t, dir("r"), file("r/x"), dir("r/d"), file("r/d/x")), true},
		"the content":        {".", write(t, dir("."), file("x"), dir("d")), true},
		"content without it": {".", write(t, file("x")), false},
	} {
		_, to := place(t)
		before := describe(t, to)
		err := UnpackWith(bytes.NewReader(c.text), to, UnpackOptions{Name: c.name})
		if c.want && err != nil || !c.want && !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", name, err)
		}
		for _, other := range []string{".bashrc", "rr"} {
			if _, err := os.Lstat(filepath.Join(to, other)); err == nil {
				t.Errorf("%s: made %s, beside %q", name, other, before)
			}
		}
	}
}

// TestLinkRule checks that a symlink stays if it leads to a file of the
// archive, or where it may lead.
func TestLinkRule(t *testing.T) {
	for name, c := range map[string]struct {
		target string
		want   string // "" where it is left out
	}{
		"a file":                       {"f", "f"},
		"a directory":                  {"d", "d"},
		"up and down":                  {"d/../f", "d/../f"},
		"a file through a directory":   {"d/x", "d/x"},
		"another symlink that stays":   {"good", "good"},
		"where it came from":           {"/from/d/x", "d/x"},
		"within":                       {"image/file", "image/file"},
		"a symlink there":              {"image/alias", "image/alias"},
		"the reader's file":            {"tests/expected", ""},
		"the reader's directory":       {"tests", ""},
		"what contains it":             {".", ""},
		"through a symlink there":      {"image/out/expected", ""},
		"through one that goes":        {"bad/../f", ""},
		"two symlinks":                 {"up/tests/expected", ""},
		"out":                          {"../outside/secret", ""},
		"an absolute path":             {"/etc/passwd", ""},
		"out of where it came from":    {"/from/../etc/passwd", ""},
		"nothing":                      {"none", ""},
		"itself":                       {"l", ""},
		"a mount":                      {"image/proc/x", ""},
		"the other end of a loop":      {"loop", ""},
		"a file of the reader's dir d": {"merged/mine", ""},
	} {
		_, to := place(t)
		for dir, names := range map[string][]string{"image": {"file"}, "tests": {"expected"}, "image/proc": {"x"}, "merged": {"mine"}} {
			must(t, os.MkdirAll(filepath.Join(to, dir), 0o755))
			for _, f := range names {
				must(t, os.WriteFile(filepath.Join(to, dir, f), nil, 0o644))
			}
		}
		must(t, os.Symlink("file", filepath.Join(to, "image/alias")))
		must(t, os.Symlink("../tests", filepath.Join(to, "image/out")))
		must(t, os.Symlink("tests/expected", filepath.Join(to, "theirs")))
		var left []string
		err := UnpackWith(bytes.NewReader(write(t, link("l", c.target), file("f"), tar.Header{Typeflag: tar.TypeDir, Name: "merged", Mode: 0o755}, file("d/x"), link("good", "d"),
			link("bad", "tests"), link("up", "d/.."), link("loop", "l"), link("theirs", "tests/expected"))), to,
			UnpackOptions{Links: &LinkRule{From: "/from", Within: []string{"image"}, Except: []string{"tests"}, Mounts: []string{"image/proc"}, LeftOut: func(name, target string) {
				left = append(left, name+" -> "+target)
			}}})
		must(t, err)
		got, _ := os.Readlink(filepath.Join(to, "l"))
		if got != c.want || slices.Contains(left, "l -> "+c.target) != (c.want == "") {
			t.Errorf("%s: %q, left out %q", name, got, left)
		}
		if _, err := os.Readlink(filepath.Join(to, "theirs")); err != nil || !slices.Contains(left, "bad -> tests") {
			t.Errorf("%s: a symlink that was there: %v; left out %q", name, err, left)
		}
	}
	_, to := place(t) // none stays of an archive that is refused in the end either
	err := UnpackWith(bytes.NewReader(write(t, file("f"), link("l", "/etc/passwd"), file("../x"))), to, UnpackOptions{Links: &LinkRule{}})
	_, kept := os.Lstat(filepath.Join(to, "f"))
	_, there := os.Lstat(filepath.Join(to, "l"))
	if !errors.Is(err, ErrEntry) || kept != nil || there == nil {
		t.Errorf("%v, %v, %v", err, kept, there)
	}
}

// TestUnpackSteps checks that deep directories, hard links and symlink targets
// can't keep the reader busy, and no symlink of such an archive stays. The
// control is the same archive with one more step allowed.
func TestUnpackSteps(t *testing.T) {
	deep := strings.Repeat("d/", 50)
	for name, c := range map[string]struct {
		entries []tar.Header
		steps   int
	}{
		"directories": {[]tar.Header{file(deep + "a"), file("b"), file(deep + "c")}, 100},
		"hard links":  {[]tar.Header{file(deep + "a"), {Typeflag: tar.TypeLink, Name: "h", Linkname: deep + "a"}}, 102},
		// the directory, the symlink, its target, and one for the end
		"symlinks": {[]tar.Header{file(deep + "a"), link("l", deep+"a")}, 50 + 1 + 51*52/2 + 1},
	} {
		for missing := range 2 {
			_, to := place(t)
			err := UnpackWith(bytes.NewReader(write(t, c.entries...)), to, UnpackOptions{Bounds: Bounds{Steps: c.steps - missing}, Links: &LinkRule{}})
			_, left := os.Lstat(filepath.Join(to, "l"))
			if errors.Is(err, ErrBound) != (missing == 1) || missing == 0 && err != nil || missing == 1 && left == nil {
				t.Errorf("%s, %d too few: %v; the symlink: %v", name, missing, err, left)
			}
		}
	}
	done := make(chan struct{})
	close(done)
	_, to := place(t)
	if err := UnpackWith(bytes.NewReader(write(t, file("d/a"))), to, UnpackOptions{Done: done}); err == nil {
		t.Error("it was stopped, and went on")
	}
}

// TestUnpackCut checks that an archive that ends within an entry, and other
// text, are malformed.
func TestUnpackCut(t *testing.T) {
	whole := write(t, file("a"), tar.Header{Typeflag: tar.TypeReg, Name: "b", Mode: 0o644, Size: 2000})
	for _, text := range [][]byte{whole[:100], whole[:1024+512+1000], []byte(strings.Repeat("x", 2000))} {
		if err := Unpack(bytes.NewReader(text), t.TempDir(), Bounds{}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes: %v", len(text), err)
		}
	}
	to := t.TempDir()
	must(t, os.WriteFile(filepath.Join(to, "b"), []byte("old"), 0o644))
	before := describe(t, to)[1:]
	if err := Unpack(bytes.NewReader(write(t, tar.Header{Typeflag: tar.TypeReg, Name: "b", Mode: 0o644, Size: 2000})[:1000]), to, Bounds{}); !errors.Is(err, ErrMalformed) {
		t.Errorf("over a file: %v", err)
	}
	if d := gocmp.Diff(before, describe(t, to)[1:]); d != "" {
		t.Errorf("a file that was cut off left:\n%s", d)
	}
	must(t, unix.Mkfifo(filepath.Join(to, "pipe"), 0o600))
	for _, name := range []string{"pipe", "none"} {
		if err := Unpack(bytes.NewReader(whole), filepath.Join(to, name), Bounds{}); !errors.Is(err, ErrNoDirectory) {
			t.Errorf("unpacked to %s: %v", name, err)
		}
	}
}

// TestUnpackReplaces checks that an existing name gets a new file, and the old
// file stays.
func TestUnpackReplaces(t *testing.T) {
	top, to := place(t)
	must(t, os.Link(filepath.Join(to, "mine"), filepath.Join(top, "outside", "linked")))
	must(t, os.Mkdir(filepath.Join(to, "d"), 0o755))
	must(t, Unpack(bytes.NewReader(write(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "x"}},
		file("mine"), file("existing"), tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o4711}, tar.Header{Typeflag: tar.TypeReg, Name: "d/setid", Mode: 0o6755},
		file("new/dir/x"), file("twice"), link("twice", "mine"))), to, Bounds{}))
	for name, want := range map[string]string{"to/mine": "y", "to/existing": "y", "outside/secret": "secret", "outside/linked": "mine", "to/new/dir/x": "y", "to/twice": "y"} {
		if got, err := os.ReadFile(filepath.Join(top, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, want := range map[string]fs.FileMode{"d": fs.ModeDir | 0o711, "d/setid": 0o755, "mine": 0o644} {
		if info, err := os.Stat(filepath.Join(to, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// TestUnpackKeepsExisting checks that the archive chooses modes and times only
// of directories that it makes. Without the option, the control, it chooses
// all.
func TestUnpackKeepsExisting(t *testing.T) {
	text := write(t, tar.Header{Typeflag: tar.TypeDir, Name: ".", Mode: 0o777}, tar.Header{Typeflag: tar.TypeDir, Name: "own/", Mode: 0}, file("implied/x"),
		tar.Header{Typeflag: tar.TypeDir, Name: "implied/", Mode: 0o711}, tar.Header{Typeflag: tar.TypeDir, Name: "new/", Mode: 0o750})
	for keep, want := range map[bool]map[string]fs.FileMode{
		true:  {".": 0o700, "own": 0o700, "implied": 0o711, "new": 0o750},
		false: {".": 0o777, "own": 0, "implied": 0o711, "new": 0o750},
	} {
		to := t.TempDir()
		must(t, os.Mkdir(filepath.Join(to, "own"), 0o700))
		must(t, os.Chmod(to, 0o700))
		must(t, UnpackWith(bytes.NewReader(text), to, UnpackOptions{KeepExisting: keep}))
		for name, mode := range want {
			info, err := os.Stat(filepath.Join(to, name))
			must(t, err)
			if recent := info.ModTime().Year() > 2000; info.Mode().Perm() != mode || recent != (mode == 0o700) {
				t.Errorf("keep %v: %s has mode %s and time %s, want %s", keep, name, info.Mode(), info.ModTime(), mode)
			}
		}
	}
}

// TestHoles checks that holes and blocks of zeros take no space in an archive,
// in its copy, or on the disk where it is unpacked. GNU tar reads the archive.
func TestHoles(t *testing.T) {
	from, to, copied, gnu := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	const size = 4 << 20
	for name, at := range map[string][]int64{
		"empty": nil, "start": {0}, "end": {size - 6}, "middle": {size / 2}, "two": {100, size/2 + 1}, strings.Repeat("long", 60): {size / 2}, "\xff@NU.sparse.ANU.sparse.BNU.sparse.": {3},
	} {
		f, err := os.Create(filepath.Join(from, name))
		must(t, err)
		for _, offset := range at {
			_, err = f.WriteAt([]byte("middle"), offset)
			must(t, err)
		}
		must(t, f.Truncate(size))
		must(t, f.Close())
	}
	// Every second block is written zeros, which no file system reports.
	must(t, os.WriteFile(filepath.Join(from, "zeros"), bytes.Repeat(append(make([]byte, blockSize), bytes.Repeat([]byte("x"), blockSize)...), size/blockSize/2), 0o644))
	must(t, os.Link(filepath.Join(from, "end"), filepath.Join(from, "linked")))
	text := pack(t, from, PackOptions{Name: "."})
	if len(text) > size {
		t.Errorf("the archive has %d bytes", len(text))
	}
	must(t, Unpack(bytes.NewReader(text), to, Bounds{}))
	var again bytes.Buffer
	out, r := NewWriter(&again), bytes.NewReader(text)
	in := tar.NewReader(r)
	for h, err := in.Next(); !errors.Is(err, io.EOF); h, err = in.Next() {
		must(t, err)
		h.Format = tar.FormatPAX
		if h.Name == "two" {
			must(t, out.CopyPacked(h, bytes.NewReader(text[len(text)-r.Len():])))
		} else {
			must(t, out.Copy(h, in))
		}
	}
	must(t, out.Close())
	if !bytes.Equal(text, again.Bytes()) {
		t.Errorf("a copy of %d bytes has %d", len(text), again.Len())
	}
	must(t, Unpack(&again, copied, Bounds{}))
	dirs := []string{to, copied}
	if _, err := exec.LookPath("tar"); err == nil {
		cmd := exec.CommandContext(t.Context(), "tar", "-xf", "-", "-C", gnu)
		cmd.Stdin = bytes.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("tar: %v: %s", err, out)
		}
		dirs = append(dirs, gnu)
	}
	for _, dir := range dirs {
		if d := gocmp.Diff(describe(t, from), describe(t, dir)); d != "" {
			t.Error(d)
		}
		for name, most := range map[string]int64{"empty": 0, "end": blockSize, "two": 2 * blockSize, "zeros": size/2 + blockSize} { // a file system may keep the places of many parts in a block
			var st unix.Stat_t
			must(t, unix.Stat(filepath.Join(dir, name), &st))
			if st.Blocks*512 > most {
				t.Errorf("%s: %d bytes on the disk", name, st.Blocks*512)
			}
		}
	}
}

// TestManyHoles checks that a file with more parts than an archive describes
// keeps its rest.
func TestManyHoles(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	must(t, err)
	defer func() { must(t, f.Close()) }()
	const size = (maxExtents + 10) * 2 * blockSize
	must(t, f.Truncate(size))
	for i := range int64(maxExtents + 10) {
		_, err := f.WriteAt([]byte("x"), i*2*blockSize)
		must(t, err)
	}
	data, err := findData(f, size)
	must(t, err)
	if last := data[len(data)-1]; len(data) != maxExtents || last.offset+last.length != size {
		t.Errorf("%d parts, the last one %+v", len(data), last)
	}
}

// TestSearchForHolesEnds checks that zeros beyond the search's bound are data.
func TestSearchForHolesEnds(t *testing.T) {
	was := maxSearched
	maxSearched = 2 * blockSize
	defer func() { maxSearched = was }()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	must(t, err)
	defer func() { must(t, f.Close()) }()
	const size = 2*minHoles + 4*blockSize
	must(t, f.Truncate(minHoles))
	_, err = f.WriteAt(append([]byte("x"), make([]byte, size-minHoles-1)...), minHoles)
	must(t, err)
	data, err := findData(f, size)
	must(t, err)
	want := []extent{{minHoles, blockSize}, {minHoles + 2*blockSize, size - minHoles - 2*blockSize}}
	if d := gocmp.Diff(want, data, gocmp.AllowUnexported(extent{})); d != "" {
		t.Error(d)
	}
}

// FuzzUnpack unpacks anything: nothing outside changes, and the bounds hold.
func FuzzUnpack(f *testing.F) {
	for _, text := range hostile(f) {
		f.Add(text)
	}
	f.Add(write(f, file("a"), tar.Header{Typeflag: tar.TypeLink, Name: "b", Linkname: "a"}, link("c", "b"), file("d/e")))
	f.Fuzz(func(t *testing.T, text []byte) {
		top, to := place(t)
		before := describe(t, filepath.Join(top, "outside"))
		bounds := Bounds{Entries: 20, Bytes: 1 << 20}
		err := Unpack(bytes.NewReader(text), to, bounds)
		if err != nil && !strings.HasPrefix(err.Error(), "unpack: ") {
			t.Errorf("%v", err)
		}
		if d := gocmp.Diff(before, describe(t, filepath.Join(top, "outside"))); d != "" {
			t.Errorf("changed what is outside:\n%s", d)
		}
		names, inodes, bytes := 0, map[uint64]bool{}, int64(0)
		must(t, filepath.WalkDir(to, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return fs.SkipDir // closed to its owner
			}
			info, err := d.Info()
			must(t, err)
			switch info.Mode().Type() {
			case 0:
				if st := info.Sys().(*syscall.Stat_t); !inodes[st.Ino] {
					inodes[st.Ino] = true
					bytes += info.Size()
				}
			case fs.ModeDir, fs.ModeSymlink:
			default:
				t.Errorf("made %s", info.Mode())
			}
			names++
			if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
				t.Errorf("made %s", info.Mode())
			}
			return nil
		}))
		const there = 4 // the directory and names that were there, and a directory that is beyond the bound
		if int64(names) > bounds.Entries+there || bytes > bounds.Bytes*zerosPerByte+int64(len("mine")) {
			t.Errorf("%d names, %d bytes", names, bytes)
		}
	})
}

// TestLinksComeLast checks that symlinks with a rule are not made before the
// archive is whole, and that a cut archive leaves none.
func TestLinksComeLast(t *testing.T) {
	for _, whole := range []bool{false, true} {
		dir := t.TempDir()
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- UnpackWith(r, dir, UnpackOptions{Name: ".", Links: &LinkRule{}}) }()
		tw := tar.NewWriter(w)
		must(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}))
		must(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "file"}))
		must(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bad", Linkname: "/etc/passwd"}))
		must(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o600, Size: 1024}))
		_, err := tw.Write(make([]byte, 1024)) // the symlinks were read
		must(t, err)
		for _, name := range []string{"link", "bad"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				t.Errorf("%s is there before the end", name)
			}
		}
		if whole {
			must(t, tw.Close())
			must(t, w.Close())
		} else {
			w.CloseWithError(errors.New("cut"))
		}
		if err := <-done; (err == nil) != whole {
			t.Error(err)
		}
		_, err = os.Lstat(filepath.Join(dir, "link"))
		_, bad := os.Lstat(filepath.Join(dir, "bad"))
		if (err == nil) != whole || bad == nil {
			t.Errorf("whole %t: %v, %v", whole, err, bad)
		}
	}
}

// TestRemembered checks that an archive of many entries takes bounded memory.
func TestRemembered(t *testing.T) {
	defer func(most int) { maxRemembered = most }(maxRemembered)
	for _, kind := range []byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink} {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		for i := range 100 {
			must(t, tw.WriteHeader(&tar.Header{Typeflag: kind, Name: strconv.Itoa(i), Linkname: map[byte]string{tar.TypeSymlink: "a"}[kind], Mode: 0o700}))
		}
		must(t, tw.Close())
		for most, want := range map[int]error{maxRemembered: nil, 2000: ErrBound} {
			maxRemembered = most
			if err := UnpackWith(bytes.NewReader(b.Bytes()), t.TempDir(), UnpackOptions{Links: &LinkRule{Within: []string{"."}}}); !errors.Is(err, want) {
				t.Errorf("%c, at most %d bytes: %v, want %v", kind, most, err, want)
			}
		}
		maxRemembered = 256 << 20
	}
}
