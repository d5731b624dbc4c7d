package skill

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	const head = "---\nname: pdf-forms\ndescription: Fills forms.\n"
	for _, test := range []struct {
		name, text string
		want       Document
	}{
		{"no declaration", head + "---\n\n# Body\n", Document{Name: "pdf-forms", Description: "Fills forms.", Body: "# Body"}},
		{"declared text", head + "allowed-tools: Bash(git add:*), Read   Grep\n---\n", Document{Declares: true, AllowedTools: []string{"Bash(git add:*)", "Read", "Grep"}}},
		{"declared list", head + "allowed-tools:\n  - Read\n  - Bash(ls:*), Write\n---\n", Document{Declares: true, AllowedTools: []string{"Read", "Bash(ls:*)", "Write"}}},
		{"underscore", head + "allowed_tools: Read\n---\n", Document{Declares: true, AllowedTools: []string{"Read"}}},
		{"other spellings", head + "Allowed-Tools: Read\n---\n", Document{Declares: true, AllowedTools: []string{"Read"}}},
		{"a quoted key", head + "\"allowedTools\": Read\n---\n", Document{Declares: true, AllowedTools: []string{"Read"}}},
		{"declared without a value", head + "allowed-tools:\n---\n", Document{Declares: true, AllowedTools: []string{}}},
		{"declared empty list", head + "allowed-tools: []\n---\n", Document{Declares: true, AllowedTools: []string{}}},
		{"declared empty text", head + "allowed-tools: \"\"\n---\n", Document{Declares: true, AllowedTools: []string{}}},
		{"declared mapping", head + "allowed-tools: {Read: true}\n---\n", Document{Declares: true, AllowedTools: []string{}, Warnings: []string{"its allowed-tools is neither text nor a list, so it allows no tool"}}},
		{"declared alias", head + "x: &a [Bash]\nallowed-tools: *a\n---\n", Document{Declares: true, AllowedTools: []string{}, Warnings: []string{"its allowed-tools is neither text nor a list, so it allows no tool"}}},
		{"a member that is a list", head + "allowed-tools: [Read, [Bash]]\n---\n", Document{Declares: true, AllowedTools: []string{"Read"}, Warnings: []string{"an entry of its allowed-tools is no text, and is left out"}}},
		{"byte order mark and CRLF", "\uFEFF" + strings.ReplaceAll(head+"---\nBody\nmore\n", "\n", "\r\n"), Document{Body: "Body\nmore"}},
		{"unknown keys", head + "license: MIT\nmetadata: {a: b}\n---\n", Document{}},
		{"folded", "---\nname: pdf-forms\ndescription: >\n  Fills\n  forms.\n---\n", Document{Description: "Fills forms."}},
		{"a rule in the body", head + "---\nA\n---\nB\n", Document{Body: "A\n---\nB"}},
		{"a long description", "---\nname: pdf-forms\ndescription: " + strings.Repeat("ü", MaxDescription+1) + "\n---\n", Document{Description: strings.Repeat("ü", MaxDescription), Warnings: []string{"its description has more than 1024 characters and was cut"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse([]byte(test.text), "")
			if err != nil {
				t.Fatal(err)
			}
			want := test.want
			want.Name = "pdf-forms"
			if want.Description == "" {
				want.Description = "Fills forms."
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Parse (-want +got):\n%s", diff)
			}
		})
	}
}

// TestParseRefuses: each file that can't be used is refused with its reason and line.
func TestParseRefuses(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", `line 1: no front matter: the first line must be "---"`},
		{"no front matter", "# A skill\n", `line 1: no front matter: the first line must be "---"`},
		{"no end", "---\nname: a\n", `the front matter does not end: a line "---" is missing`},
		{"no name", "---\ndescription: b\n---\n", "its front matter has no name"},
		{"empty name", "---\nname: \"\"\ndescription: b\n---\n", "line 2: its front matter has no name"},
		{"no description", "---\nname: a\n---\n", "its front matter has no description"},
		{"a list for a name", "---\nname: [a]\ndescription: b\n---\n", "line 2: its front matter has no name"},
		{"an alias for a description", "---\nx: &t text\nname: a\ndescription: *t\n---\n", "line 4: its front matter has no description"},
		{"bad name", "---\nname: Do This\ndescription: b\n---\n", `line 2: its name "Do This" must be 1 to 64 of a-z, 0-9 and single hyphens between them`},
		{"name with two hyphens", "---\nname: a--b\ndescription: b\n---\n", `line 2: its name "a--b" must be 1 to 64 of a-z, 0-9 and single hyphens between them`},
		{"path for a name", "---\nname: ../a\ndescription: b\n---\n", `line 2: its name "../a" must be 1 to 64 of a-z, 0-9 and single hyphens between them`},
		{"long name", "---\nname: " + strings.Repeat("a", 65) + "\ndescription: b\n---\n", "line 2: its name \"" + strings.Repeat("a", 65) + `" must be 1 to 64 of a-z, 0-9 and single hyphens between them`},
		{"no mapping", "---\n- a\n---\n", "line 2: its front matter is not a mapping of keys to values"},
		{"bad YAML", "---\nname: a\ndescription: \"b\n---\n", "line 3: its front matter is not YAML: could not find end character of double-quoted text"},
		{"a key twice", "---\nname: a\nname: b\ndescription: b\n---\n", `line 3: its front matter is not YAML: mapping key "name" already defined at [1:1]`},
		{"control character", "---\nname: a\ndescription: b\x1b[2J\n---\n", "line 3: a control character in the front matter"},
		{"no UTF-8", "---\nname: a\ndescription: \xff\n---\n", "it is not UTF-8"},
		{"large front matter", "---\nname: a\ndescription: b\nx: " + strings.Repeat("a", MaxFrontMatterBytes) + "\n---\n", "its front matter has more than 8192 bytes"},
		{"large body", "---\nname: a\ndescription: b\n---\n" + strings.Repeat("a", MaxBodyBytes+1), "its body has more than 65536 bytes"},
		{"both keys", "---\nname: a\ndescription: b\nallowed-tools: Read\nallowed_tools: Bash\n---\n", "line 5: its front matter has allowed-tools twice, in two spellings"},
		{"two documents", "---\nname: a\ndescription: b\nallowed-tools: Read\n...\nallowed-tools: '*'\n---\n", "its front matter has more than one YAML document"},
		{"a key with an anchor", "---\nname: a\ndescription: b\n&x allowed-tools: Read\n---\n", "line 4: a key of its front matter is not plain text"},
		{"a key with a tag", "---\nname: a\ndescription: b\n!!str allowed-tools: Read\n---\n", "line 4: a key of its front matter is not plain text"},
		{"an explicit key", "---\nname: a\ndescription: b\n? allowed-tools\n: Read\n---\n", "line 4: a key of its front matter is not plain text"},
		{"a merge", "---\nx: &x {allowed-tools: Read}\n<<: *x\nname: a\ndescription: b\n---\n", "line 3: a key of its front matter is not plain text"},
		{"a quoted key twice", "---\nname: a\ndescription: b\nallowed-tools: Read\n\"allowed-tools\": Bash\n---\n", `line 5: its front matter is not YAML: mapping key "allowed-tools" already defined at [3:1]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, err := Parse([]byte(test.text), "")
			e, ok := errors.AsType[*FormatError](err)
			if !ok {
				t.Fatalf("Parse = %+v, %v", d, err)
			}
			if e.Error() != test.want {
				t.Errorf("error = %q, want %q", e, test.want)
			}
		})
	}
}

// FuzzParse: whatever a SKILL.md has, a skill that is accepted keeps its bounds.
func FuzzParse(f *testing.F) {
	f.Add([]byte("---\nname: a\ndescription: b\nallowed-tools: Bash(git:*) Read\n---\nbody"))
	f.Add([]byte("---\nname: a\ndescription: &x b\nallowed-tools: [*x, {a: b}]\n---\n"))
	f.Add([]byte("---\nname: a\ndescription: |\n  b\n---\n"))
	f.Add([]byte("---\n? a\n: b\n---\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse(text, "a")
		if err != nil {
			if _, ok := errors.AsType[*FormatError](err); !ok {
				t.Fatalf("error %T: %v", err, err)
			}
			return
		}
		if !isName(d.Name) || d.Description == "" || len([]rune(d.Description)) > MaxDescription || len(d.Body) > MaxBodyBytes {
			t.Errorf("accepted %+v", d)
		}
		if !d.Declares && d.AllowedTools != nil || d.Declares && d.AllowedTools == nil {
			t.Errorf("declares %v: %q", d.Declares, d.AllowedTools)
		}
	})
}

// TestParseTakesTheNameOfTheDirectory: a name in another spelling of its directory's is
// taken for it, and none else.
func TestParseTakesTheNameOfTheDirectory(t *testing.T) {
	for name, want := range map[string]string{
		"make-release": "make-release", "Make Release": "make-release", "make_release": "make-release", "MAKE-release": "make-release", "other": "other",
		"Make  Release": "", "Other Release": "", "make-releaſe": "", "mаke release": "", "Make Release.": "", "../make-release": "",
	} {
		d, err := Parse([]byte("---\nname: "+name+"\ndescription: b\n---\n"), "make-release")
		if d.Name = map[bool]string{true: d.Name}[err == nil]; d.Name != want || err == nil && (len(d.Warnings) == 0) != (name == "make-release") {
			t.Errorf("%q is %q with %v, %v; want %q", name, d.Name, d.Warnings, err, want)
		}
		if _, err := Parse([]byte("---\nname: "+name+"\ndescription: b\n---\n"), "Make Release"); (err == nil) != isName(name) {
			t.Errorf("%q in a directory with a bad name: %v", name, err)
		}
	}
}
