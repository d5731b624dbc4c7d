package docker

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

const builtID = "sha256:0123456789012345678901234567890123456789012345678901234567890123"

func TestBuildOutput(t *testing.T) {
	for name, tt := range map[string]struct {
		stream string
		made   []string
		shown  string
		err    error
		says   string
	}{
		"a build": {
			stream: `{"stream":"Step 1/3 : FROM base"}{"stream":"\n"}{"stream":" ---> 00000000000a\n"}
				{"stream":"Step 2/3 : RUN one"}{"stream":" ---> Using cache\n"}{"stream":" ---> 00000000000b\n"}
				{"stream":"Step 3/3 : RUN two"}{"stream":" ---> Running in 111111111111\n"}{"stream":"said by two\n"}{"stream":" ---> 00000000000c\n"}
				{"aux":{"ID":"` + builtID + `"}}{"stream":"Successfully built 00000000000c\n"}`,
			made:  []string{"00000000000c"},
			shown: "said by two\n",
		},
		"a pull": {
			stream: `{"status":"Pulling from base","id":"1"}{"status":"Download complete","progressDetail":{}}{"aux":{"ID":"` + builtID + `"}}`,
			shown:  "Download complete\n",
		},
		"a step that fails": {
			stream: `{"stream":"Step 2/3 : COPY a b"}{"stream":" ---> 00000000000b\n"}{"stream":"Step 3/3 : RUN false"}
				{"errorDetail":{"code":1,"message":"it returned 1"},"error":"it returned 1"}`,
			made: []string{"00000000000b"}, err: images.ErrInvalid, says: "it returned 1",
		},
		"a base that looks like a step's": {stream: `{"stream":"Step 1/1 : from base"}{"stream":" ---> 00000000000a\n"}{"aux":{"ID":"` + builtID + `"}}`},
		"no image":                        {stream: `{"stream":"done"}`, err: images.ErrInvalid, says: "named no image"},
		"another id":                      {stream: `{"aux":{"ID":"../../x"}}`, err: images.ErrInvalid, says: "named no image"},
		"cut off":                         {stream: `{"stream":"Step 1/1`, err: sandbox.ErrUnavailable, says: "engine's answer"},
		"not JSON":                        {stream: `<html>`, err: sandbox.ErrUnavailable, says: "engine's answer"},
	} {
		t.Run(name, func(t *testing.T) {
			var shown strings.Builder
			b := &buildOutput{progress: &shown}
			err := b.readLines(strings.NewReader(tt.stream))
			if !errors.Is(err, tt.err) || (err != nil) != (tt.says != "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %v that says %q", err, tt.err, tt.says)
			}
			if err == nil && b.id != builtID {
				t.Errorf("id %q", b.id)
			}
			if diff := cmp.Diff(tt.made, b.made); diff != "" {
				t.Errorf("made (-want +got):\n%s", diff)
			}
			if !strings.Contains(shown.String(), tt.shown) {
				t.Errorf("shown %q lacks %q", shown.String(), tt.shown)
			}
		})
	}
}

func TestLoadedID(t *testing.T) {
	for stream, want := range map[string]string{
		`{"stream":"Loaded image ID: ` + builtID + `\n"}`:                        builtID,
		`{"status":"Loading layer"}{"stream":"Loaded image: caisson/image:1\n"}`: "",
		`{"stream":"Loaded image ID: sha256:..\n"}`:                              "",
		``: "",
	} {
		if got, err := loadedID(strings.NewReader(stream)); got != want || err != nil {
			t.Errorf("%s: %q %v, want %q", stream, got, err, want)
		}
	}
	if _, err := loadedID(strings.NewReader(`{"error":"no space left on device"}`)); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("error %v", err)
	}
}

// The engine splits and colours lines. They must be whole.
func TestLastLines(t *testing.T) {
	b := &buildOutput{}
	for _, chunk := range append([]string{"Step 1/1 : RUN x", "\n", " ---> Running in 1\n", "before\n\n", "\x1b[91mc\x1b[0m", "\x1b[91murl: \x1b[0m", "\x1b[91mrefused\n\x1b[0m"}, "Removing intermediate container 1\n") {
		b.addLine(line{Stream: chunk})
	}
	if diff := cmp.Diff([]string{"Step 1/1 : RUN x", "before", "curl: refused"}, b.lastLines()); diff != "" {
		t.Error(diff)
	}
	for range 3 * maxTailBytes {
		b.addLine(line{Stream: "ä\n"})
	}
	b.addLine(line{Stream: strings.Repeat("ä", maxTailBytes)})
	if got := b.lastLines(); len(got) > maxLastLines || len(got[len(got)-1]) > maxLineBytes || cap(b.tail) > 10*maxTailBytes {
		t.Errorf("%d lines, %d bytes", len(got), cap(b.tail))
	}
}
