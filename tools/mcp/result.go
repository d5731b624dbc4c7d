package mcp

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/picture"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Bounds of what a result shows besides its text, which the dispatcher bounds.
const (
	maxURIBytes      = 2 << 10
	maxLinkBytes     = 500
	maxContent       = 256
	maxComparedBytes = 1 << 20
)

func callOutput(result *mcp.CallToolResult) tools.Output {
	out := tools.Output{Success: !result.IsError, Content: contentBlocks(result.Content)}
	var texts []string
	for _, c := range result.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			texts = append(texts, text.Text)
		}
	}
	if result.StructuredContent != nil && !haveValue(texts, result.StructuredContent) {
		if text, err := json.Marshal(result.StructuredContent); err == nil {
			out.Content = append(out.Content, tools.Block{Text: string(text)})
		}
	}
	if len(out.Content) == 0 {
		out.Content = []tools.Block{{Text: "(The result is empty.)"}}
	}
	return out
}

// haveValue reports whether texts contain all of a structured value. Most servers
// repeat it for older clients: as JSON, or without the object that a library put
// around it. A list may be one text per element. Long texts are not compared:
// decoded JSON takes fifty times as much memory.
func haveValue(texts []string, value any) bool {
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	if size > maxComparedBytes || len(texts) > maxContent {
		return false
	}
	decoded := make([]any, len(texts))
	for i, text := range texts {
		if json.Unmarshal([]byte(text), &decoded[i]) != nil {
			decoded[i] = text
		}
	}
	is := func(i int, value any) bool { return texts[i] == value || reflect.DeepEqual(decoded[i], value) }
	object, _ := value.(map[string]any)
	inner, wrapped := object["result"]
	wrapped = wrapped && len(object) == 1
	for i := range texts {
		if is(i, value) || wrapped && is(i, inner) {
			return true
		}
	}
	list, ok := inner.([]any)
	if !ok || !wrapped || len(list) != len(texts) {
		return false
	}
	for i := range texts {
		if !is(i, list[i]) {
			return false
		}
	}
	return true
}

// contentBlocks returns content as blocks. It reads nothing that content refers to.
func contentBlocks(content []mcp.Content) []tools.Block {
	var blocks []tools.Block
	for i, c := range content {
		if i == maxContent {
			return append(blocks, tools.Block{Text: fmt.Sprintf("[… %d more blocks left out …]", len(content)-i)})
		}
		blocks = append(blocks, contentBlock(c))
	}
	return blocks
}

func contentBlock(content mcp.Content) tools.Block {
	switch c := content.(type) {
	case *mcp.TextContent:
		return tools.Block{Text: c.Text}
	case *mcp.ImageContent:
		return pictureBlock(c.Data)
	case *mcp.AudioContent:
		return noteBlock("audio of type %s, %d bytes: not shown", oneLine(c.MIMEType, maxShownName), len(c.Data))
	case *mcp.ResourceLink:
		return linkBlock(c)
	case *mcp.EmbeddedResource:
		return resourceBlock(c.Resource)
	}
	return noteBlock("content of an unknown type: not shown")
}

func noteBlock(format string, args ...any) tools.Block {
	return tools.Block{Text: "[" + fmt.Sprintf(format, args...) + "]"}
}

// pictureBlock returns a picture whose type and size providers accept, or a note.
// The bytes decide about the type, not the server.
func pictureBlock(data []byte) tools.Block {
	media := picture.Type(data)
	if media == "" {
		return noteBlock("a picture of %d bytes that is no PNG, JPEG, GIF or WebP: not shown", len(data))
	}
	if len(data) > picture.MaxBytes {
		return noteBlock("a picture of %d bytes: not shown, at most %d can be", len(data), picture.MaxBytes)
	}
	size, err := picture.Size(media, data)
	switch {
	case err != nil:
		return noteBlock("a picture of type %s that can't be read: not shown", media)
	case size.X > picture.MaxSide || size.Y > picture.MaxSide:
		return noteBlock("a picture of %d × %d pixels: not shown, at most %d a side can be", size.X, size.Y, picture.MaxSide)
	}
	return tools.Block{Image: data, MediaType: media}
}

func linkBlock(link *mcp.ResourceLink) tools.Block {
	details := []string{"resource " + oneLine(link.URI, maxURIBytes)}
	add := func(text string) {
		if text != "" {
			details = append(details, oneLine(text, maxLinkBytes))
		}
	}
	add(link.Name)
	add(link.MIMEType)
	if link.Size != nil {
		details = append(details, fmt.Sprintf("%d bytes", *link.Size))
	}
	add(link.Description)
	return noteBlock("%s: not read, read_mcp_resource can", strings.Join(details, ", "))
}

func resourceBlock(resource *mcp.ResourceContents) tools.Block {
	switch {
	case resource == nil:
		return noteBlock("a resource without contents")
	case resource.Text != "" || len(resource.Blob) == 0:
		return tools.Block{Text: fmt.Sprintf("[resource %s]\n%s", oneLine(resource.URI, maxURIBytes), resource.Text)}
	case picture.Type(resource.Blob) != "":
		return pictureBlock(resource.Blob)
	}
	return noteBlock("resource %s of type %s, %d bytes that are no text: not shown",
		oneLine(resource.URI, maxURIBytes), oneLine(resource.MIMEType, maxShownName), len(resource.Blob))
}

// oneLine returns a server's text for people: one line of at most limit bytes, with
// invisible characters escaped.
func oneLine(s string, limit int) string {
	safe, _ := tools.Display(utf8text.Clip(strings.ToValidUTF8(s, "\ufffd"), limit))
	return safe
}

// lastLines is [oneLine] for text of several lines. It keeps the end.
func lastLines(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) > limit {
		s = s[len(s)-limit:]
		for len(s) > 0 && !utf8.RuneStart(s[0]) {
			s = s[1:]
		}
	}
	safe, _ := tools.DisplayLines(s)
	return safe
}

// cleanText returns a definition's text without the characters that people don't
// see and models read: controls, bidirectional controls, tags and other format
// characters, private use. It cuts the text after limit bytes. A note tells the
// model of both.
func cleanText(s string, limit int) string {
	hidden := 0
	clean := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r' || isHidden(r):
			if r != '\r' {
				hidden++
			}
			return -1
		case unicode.In(r, unicode.Zs, unicode.Zl, unicode.Zp):
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
	clean, _ = utf8text.Bound(clean, limit)
	if hidden > 0 {
		clean += fmt.Sprintf("\n[%d hidden characters removed]", hidden)
	}
	return clean
}

// isHidden reports whether a rune takes no space, or is no character.
func isHidden(r rune) bool {
	switch r {
	case ' ', '\n', '\t', '\r':
		return false
	case 0x034f, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x2800, 0x3164, 0xffa0:
		return true // look like nothing, though they are letters or marks
	}
	return unicode.In(r, unicode.C) || unicode.Is(unicode.Variation_Selector, r) && r != 0xfe0f
}
