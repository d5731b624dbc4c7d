package main

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// illustrated is a picture of a page and the table that follows it.
var illustrated = regexp.MustCompile(`(?s)!\[[^]]*\]\(([a-z-]+\.svg)\).*?\n((?:\|[^\n]*\n)+)`)

// pictures draws the tables of a page that follow a picture, by the picture's file.
func pictures(page string) map[string]string {
	found := map[string]string{}
	for _, m := range illustrated.FindAllStringSubmatch(page, -1) {
		found[m[1]] = bars(m[2])
	}
	return found
}

// writePictures writes the pictures of a page beside it.
func writePictures(file, page string) error {
	for name, picture := range pictures(page) {
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), name), []byte(picture), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// style has colours for light and dark screens. The bars of a row are told apart by their names.
const style = `<style>
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.row { font-weight: 600 }
rect { fill: #0969da }
.peer { fill: #818b98 }
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } rect { fill: #4493f8 } .peer { fill: #9198a1 } }
</style>
`

// bars draws each row of a table as bars of its own scale. Columns "times" and "at most" have
// none. A cell of a peer has a note behind its number, and one in the column "with" the
// numbers of things that the columns after it were measured with.
func bars(table string) string {
	lines := strings.Split(strings.TrimSpace(table), "\n")
	head := cells(lines[0])
	var b strings.Builder
	y := 0
	for _, line := range lines[2:] {
		row := cells(line)
		label, names := row[0], head
		if i := strings.LastIndex(row[1], ", "); head[1] == "with" && i > 0 {
			last, things, _ := strings.Cut(row[1][i+2:], " ")
			label += ", ms by number of " + things
			names = append([]string{"", ""}, append(strings.Split(row[1][:i], ", "), last)...)
		}
		var most float64
		values := make([]float64, len(row))
		for i, name := range names {
			if name != "" && name != "times" && i < len(row) {
				number, _, _ := strings.Cut(row[i], ",")
				values[i], _ = strconv.ParseFloat(number, 64) // 0 has no bar
				most = max(most, values[i])
			}
		}
		fmt.Fprintf(&b, "<text class=\"row\" x=\"0\" y=\"%d\">%s</text>\n", y+14, html.EscapeString(label))
		y += 22
		for i, value := range values {
			if value == 0 {
				continue
			}
			name, class := names[i], ""
			if strings.Contains(row[i], ",") {
				name, class = "", ` class="peer"` // the note says what it is
			}
			width := max(1, value/most*180)
			fmt.Fprintf(&b, "<text x=\"62\" y=\"%d\" text-anchor=\"end\">%s</text><rect%s x=\"70\" y=\"%d\" width=\"%.1f\" height=\"12\"/><text x=\"%.1f\" y=\"%d\">%s</text>\n",
				y+10, html.EscapeString(name), class, y, width, 76+width, y+10, html.EscapeString(row[i]))
			y += 17
		}
		y += 14
	}
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 520 %d\" width=\"520\" height=\"%d\">\n%s%s</svg>\n", y, y, style, b.String())
}

// cells returns the cells of a line of a table, without the marks of code.
func cells(line string) []string {
	list := strings.Split(strings.Trim(strings.ReplaceAll(line, "`", ""), "|"), "|")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}
