// Command benchtable reads the output of `go test -bench` on standard input,
// passes it on to standard error, and prints the targets of the sandbox beside
// what was measured, as ratios within this one run. With -o it also writes two
// short tables for readers into a Markdown file, between their markers, and draws
// them beside it; what a person wrote around them stays, and so does a table of
// which nothing ran.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

func main() {
	file := flag.String("o", "", "Markdown file to write the table to")
	machine := flag.String("machine", "", "description of the machine, for the file")
	flag.Parse()
	if err := run(*file, *machine, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "benchtable:", err)
		os.Exit(1)
	}
}

func run(file, machine string, in io.Reader, out io.Writer) error {
	measured, err := read(io.TeeReader(in, os.Stderr))
	if err != nil {
		return err
	}
	if len(measured) == 0 {
		return fmt.Errorf("no benchmark ran")
	}
	lines := evaluate(rows(), measured)
	if _, err := io.WriteString(out, text(lines)); err != nil || file == "" {
		return err
	}
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	page := string(old)
	for from, table := range map[string]string{begin: markdown(measured), beginGrowth: growthMarkdown(measured)} {
		if table == "" {
			continue
		}
		if page, err = replace(page, from, "\n"+table+"\n"+machine+"\n"); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
		return err
	}
	return writePictures(file, page)
}

// module begins the package lines of go test.
const module = "pkg: github.com/caisson-run/caisson/"

// read returns every number of every benchmark.
func read(r io.Reader) (map[metric]float64, error) {
	measured := map[metric]float64{}
	pkg := ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), module); ok {
			pkg = rest
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := withoutProcessors(strings.TrimPrefix(fields[0], "Benchmark"))
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", name, err)
			}
			measured[metric{pkg, name, fields[i+1]}] = value
		}
	}
	return measured, lines.Err()
}

// withoutProcessors cuts the number of processors that go test appends.
func withoutProcessors(name string) string {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return name
	}
	if _, err := strconv.Atoi(name[i+1:]); err != nil {
		return name
	}
	return name[:i]
}
