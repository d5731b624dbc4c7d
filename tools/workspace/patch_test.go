package workspace

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

func TestPatchContent(t *testing.T) {
	cases := []struct {
		name, before, old, new string
		all                    bool
		want                   string
		n                      int
		kind                   Kind
		says                   string // in the error
	}{
		{name: "one", before: "a b c", old: "b", new: "x", want: "a x c", n: 1},
		{name: "removed", before: "a b c", old: " b", want: "a c", n: 1},
		{name: "all", before: "a a", old: "a", new: "aa", all: true, want: "aa aa", n: 2},
		{name: "all, one", before: "a", old: "a", new: "b", all: true, want: "b", n: 1},
		{name: "no UTF-8", before: "\xff a \xfe", old: "a", new: "b", want: "\xff b \xfe", n: 1},
		{name: "nothing to replace", before: "a", new: "b", kind: KindInvalid, says: "empty"},
		{name: "same", before: "a", old: "a", new: "a", kind: KindInvalid, says: "same"},
		{name: "empty file", old: "a", new: "b", kind: KindNoMatch, says: "0 matches for the text to replace; the file is empty"},
		{name: "none", before: "b", old: "a", new: "b", kind: KindNoMatch, says: "0 matches"},
		{name: "all, none", before: "b", old: "a", new: "c", all: true, kind: KindNoMatch, says: "0 matches"},
		{name: "two", before: "a\nb\na\n", old: "a", new: "c", kind: KindNoMatch, says: "2 matches for the text to replace, on lines 1, 3"},
		{name: "two on a line", before: "\naba\n", old: "a", new: "c", kind: KindNoMatch, says: "2 matches for the text to replace, on lines 2;"},
		{name: "overlapping", before: "aaa", old: "aa", new: "b", kind: KindNoMatch, says: "2 matches"},
		{name: "many", before: strings.Repeat("a\n", 100), old: "a", new: "b", kind: KindNoMatch, says: "100 matches for the text to replace, on lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …"},
		{name: "line ends", before: "a\r\nb\r\n", old: "a\nb", new: "c\nd\r\ne", want: "c\r\nd\r\ne\r\n", n: 1},
		{name: "one line of a file with CRLF", before: "a\r\nb\r\n", old: "a", new: "c", want: "c\r\nb\r\n", n: 1},
		{name: "both line ends", before: "a\nb\r\n", old: "a\nb\n", new: "c", kind: KindNoMatch},
		{name: "indentation", before: "x\n\tif a {\n\t\tb()\n\t}\n", old: "  if a {\n    b()\n", new: "c", kind: KindNoMatch, says: "line 2 differs from it in white space only"},
		{name: "byte order mark", before: "\xff\xfea\x00", old: "a\n", new: "b", kind: KindNoMatch, says: "byte order mark"},
		{name: "too large", before: strings.Repeat("a", 5000), old: "a", new: strings.Repeat("b", 5000), all: true, kind: KindTooLarge, says: "25000000 bytes"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, n, err := Op{Path: "f", Old: c.old, New: c.new, ReplaceAll: c.all}.PatchContent([]byte(c.before))
			if kindOf(err) != c.kind || string(got) != c.want || n != c.n {
				t.Errorf("got %q, %d, %v; want %q, %d, kind %q", abbreviatePath(string(got)), n, err, c.want, c.n, c.kind)
			}
			if err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %q does not say %q", err, c.says)
			}
		})
	}
}

// FuzzPatchContent checks that one match is replaced, or nothing is.
func FuzzPatchContent(f *testing.F) {
	seeds := [][3]string{{"a b c", "b", "x"}, {"aaa", "aa", "b"}, {"", "a", "b"}, {"\xff\n\r\n", "\n", ""}, {"a\n b\n", "a\nb", "c"}}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add([]byte(s[0]), s[1], s[2], true)
		f.Add([]byte(s[0]), s[1], s[2], false)
	}
	f.Fuzz(func(t *testing.T, before []byte, old, repl string, all bool) {
		kept := bytes.Clone(before)
		after, n, err := Op{Path: "f", Old: old, New: repl, ReplaceAll: all}.PatchContent(before)
		if !bytes.Equal(kept, before) {
			t.Fatal("the content that was given has changed")
		}
		if crlf := strings.ReplaceAll(old, "\n", "\r\n"); !bytes.Contains(before, []byte(old)) && bytes.Contains(before, []byte(crlf)) {
			old, repl = crlf, strings.ReplaceAll(strings.ReplaceAll(repl, "\r\n", "\n"), "\n", "\r\n")
		}
		count := bytes.Count(before, []byte(old))
		switch {
		case err != nil && (after != nil || n != 0):
			t.Errorf("gave something with an error: %v", err)
		case err == nil && (n == 0 || old == "" || !all && (n != 1 || count != 1) || all && n != count):
			t.Errorf("replaced %d of %d places, all %v", n, count, all)
		case err == nil && len(after) != len(before)+n*(len(repl)-len(old)):
			t.Errorf("%d bytes became %d", len(before), len(after))
		}
	})
}

// FuzzRelative checks that no path that leaves by its spelling is accepted.
func FuzzRelative(f *testing.F) {
	seeds := []string{"", ".", "..", "/", "//", "a/../..", "/workspace", "/workspace/../x", "/workspacex", "a//b/./c/", "\x00", "...", "~", `a\..\..`}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add(s, "/workspace", "/home/x")
	}
	f.Fuzz(func(t *testing.T, name, container, host string) {
		rel, e := newPrefixes(host, container).relativePath(name)
		if e != nil {
			return
		}
		if rel == "" || rel[0] == '/' || rel == ".." || strings.HasPrefix(rel, "../") || strings.Contains(rel, "/../") || len(rel) > MaxPathBytes {
			t.Errorf("%q became %q", name, rel)
		}
		if again, e := newPrefixes(host, container).relativePath(rel); e != nil || again != rel {
			t.Errorf("%q became %q, and that %q, %v", name, rel, again, e)
		}
	})
}

// A match is found by its lines whatever is before it.
func TestLineList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		before := strings.Repeat("x\n", r.IntN(50)) + "needle\n" + strings.Repeat("y\n", r.IntN(50))
		text := []byte(before + "needle\n")
		at := findOccurrences(text, []byte("needle"))
		if len(at) != 2 {
			t.Fatalf("%d occurrences", len(at))
		}
		first := 1 + strings.Count(before[:at[0]], "\n")
		second := 1 + strings.Count(before, "\n")
		if got, want := lineList(text, at), strings.Join([]string{strconv.Itoa(first), strconv.Itoa(second)}, ", "); got != want {
			t.Errorf("lines %s, want %s", got, want)
		}
	}
}
