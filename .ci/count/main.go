// Command count prints the figures by which the house rules of the code are
// held: the phrases of its comments, the share of one-word names, and the size,
// exports and inner references of each package.
//
//	count [-max-phrases N] [-max-words N] [-max-files N] [-commands PKG] [-max-methods N] [packages]
//
// Tests and generated files are left out. It exits with status 1 if a figure is
// over its bound. A bound of 0 is none. The package of the commands has a file for
// each of them, so its files have no bound.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	goTool := flag.String("go", "go", "the go command")
	phrases := flag.Float64("max-phrases", 0, "most dialect phrases per 1,000 comment lines")
	words := flag.Float64("max-words", 0, "most one-word names, in percent of the unexported functions and methods")
	files := flag.Int("max-files", 0, "most files of a package")
	commands := flag.String("commands", "", "the package that has a file for each command")
	methods := flag.Int("max-methods", 0, "most methods of a type")
	flag.Parse()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	packages, err := load(*goTool, patterns)
	if err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(2)
	}
	var total figures
	for _, p := range packages {
		total.add(p.figures)
	}
	print(os.Stdout, packages, total)
	var over []string
	check := func(what string, got, most float64) {
		if most > 0 && got > most {
			over = append(over, fmt.Sprintf("%s: %.1f, at most %.0f", what, got, most))
		}
	}
	check("dialect phrases per 1,000 comment lines", total.phraseRate(), *phrases)
	check("percent of one-word names", total.oneWordShare(), *words)
	for _, p := range packages {
		if p.path != *commands {
			check(p.path+": files", float64(p.files), float64(*files))
		}
		check(p.path+": methods of "+p.widest, float64(p.methods), float64(*methods))
	}
	for _, line := range over {
		fmt.Fprintln(os.Stderr, "count:", line)
	}
	if len(over) > 0 {
		os.Exit(1)
	}
}
