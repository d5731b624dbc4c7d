package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// buildOutput reads a builder's answer: a stream of JSON objects, of which one
// may be {"error":"…"} and one {"aux":{"ID":"sha256:…"}}.
//
//	{"stream":"Step 1/3 : FROM scratch"}
//	{"stream":" ---> Running in 3f2a…"}
//	{"stream":" ---> 9c4e…"}
type buildOutput struct {
	progress io.Writer // gets the builder's output; may be nil
	id       string    // the image's
	made     []string  // images made by steps of this build, in order
	from     bool      // the step takes a base image
	cached   bool      // the step's image existed before
	tail     []byte    // the end of the commands' output; the engine splits lines
}

// Bounds of the output in an error.
const (
	maxLastLines = 12
	maxLineBytes = 300
	maxTailBytes = 8 << 10
)

type line struct {
	Stream string `json:"stream"`
	Status string `json:"status"`
	Error  string `json:"error"`
	Aux    struct {
		ID string `json:"ID"`
	} `json:"aux"`
}

var (
	buildStep = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^Step \d+/\d+ : (\w+)`)
	})
	// colour matches what the builder puts around standard error; builderNote
	// matches its notes about images and containers.
	colour = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\x1b\[[0-9;]*m`)
	})
	builderNote = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(---> |Removing intermediate container )`)
	})
	stepImage = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^ ---> ([0-9a-f]{12,64})\n?$`)
	})
)

// eachLine reads a stream of JSON objects. It returns gaveUp if the engine sent
// an error.
func eachLine(r io.Reader, gaveUp error, take func(line)) error {
	decode := json.NewDecoder(r)
	for {
		var l line
		if err := decode.Decode(&l); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the engine's answer: %w: %w", sandbox.ErrUnavailable, err)
		}
		if l.Error != "" {
			return fmt.Errorf("%w: the engine says: %s", gaveUp, l.Error)
		}
		take(l)
	}
}

func (b *buildOutput) readLines(r io.Reader) error {
	if err := eachLine(r, images.ErrInvalid, b.addLine); err != nil {
		return err
	}
	if !imageID().MatchString(b.id) {
		return fmt.Errorf("%w: the builder named no image", images.ErrInvalid)
	}
	return nil
}

var imageID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
})

func (b *buildOutput) addLine(l line) {
	if l.Aux.ID != "" {
		b.id = l.Aux.ID
	}
	text := colour().ReplaceAllString(l.Stream, "")
	if text == "" && l.Status != "" {
		text = l.Status + "\n"
	}
	b.tail = append(b.tail, text...)
	if len(b.tail) > 2*maxTailBytes {
		b.tail = append(b.tail[:0], b.tail[len(b.tail)-maxTailBytes:]...)
	}
	if b.progress != nil && text != "" {
		_, _ = io.WriteString(b.progress, text) // only informative
	}
	if m := buildStep().FindStringSubmatch(l.Stream); m != nil {
		b.from, b.cached = strings.EqualFold(m[1], "FROM"), false
	} else if strings.HasPrefix(l.Stream, " ---> Using cache") {
		b.cached = true
	} else if m := stepImage().FindStringSubmatch(l.Stream); m != nil && !b.from && !b.cached {
		b.made = append(b.made, m[1])
	}
}

func (b *buildOutput) lastLines() []string {
	var list []string
	for one := range strings.SplitSeq(string(b.tail), "\n") {
		if one = strings.TrimSpace(one); one != "" && !builderNote().MatchString(one) {
			list = append(list, strings.ToValidUTF8(one[:min(len(one), maxLineBytes)], ""))
		}
	}
	return list[max(0, len(list)-maxLastLines):]
}
