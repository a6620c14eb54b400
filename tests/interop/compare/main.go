// Compare runs one command line with crictl and with crib against the same runtime, and compares what they print field by
// field:
//
//	compare CRICTL CRIB CONFIG ARGUMENT...
//
// crictl runs before and after crib. What changed between these two runs, such as a measurement or an age, is compared by its
// type only. Documents are compared by value, everything else word by word.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"sort"
	"strings"

	"sigs.k8s.io/yaml"
)

// attempts is how often the runs are repeated while they differ: a measurement may change and change back meanwhile.
const attempts = 3

// newer lists fields of a CRI that is newer than the one crictl was built with.
var newer = map[string]bool{".features.mount_options": true}

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: compare CRICTL CRIB CONFIG ARGUMENT...")
		os.Exit(2)
	}
	crictl, crib := os.Args[1], os.Args[2]
	arguments := append([]string{"--config", os.Args[3]}, os.Args[4:]...)
	var differences []string
	for range attempts {
		before := run(crictl, arguments)
		own := run(crib, arguments)
		after := run(crictl, arguments)
		differences = differ("", before, own, after)
		if len(differences) == 0 {
			fmt.Printf("%d values are the same\n", count(own))
			return
		}
	}
	for _, difference := range differences {
		fmt.Println(difference)
	}
	os.Exit(1)
}

// run returns the document that a program printed, or its lines as lists of words.
func run(program string, arguments []string) any {
	var errors strings.Builder
	command := exec.Command(program, arguments...)
	command.Stderr = &errors
	output, err := command.Output()
	if err != nil {
		fmt.Printf("%s %s: %v: %s\n", program, strings.Join(arguments, " "), err, errors.String())
		os.Exit(1)
	}
	var document any
	if text, err := yaml.YAMLToJSON(output); err == nil {
		if err := json.Unmarshal(text, &document); err == nil && isDocument(document) {
			return document
		}
	}
	lines := []any{}
	for line := range strings.Lines(string(output)) {
		words := []any{}
		for _, word := range strings.Fields(line) {
			words = append(words, word)
		}
		lines = append(lines, words)
	}
	return lines
}

func isDocument(value any) bool {
	switch value.(type) {
	case map[string]any, []any:
		return true
	default:
		return false
	}
}

// differ lists the paths at which crib's value is not crictl's.
func differ(path string, before, own, after any) []string {
	if a, ok := before.(map[string]any); ok {
		b, isMap := own.(map[string]any)
		c, stays := after.(map[string]any)
		if !isMap {
			return []string{fmt.Sprintf("%s: crictl has an object, crib %v", path, own)}
		}
		differences := []string{}
		for _, key := range keys(a, b) {
			one, inCrictl := a[key]
			two, inCrib := b[key]
			at := path + "." + key
			_, later := c[key]
			switch {
			case inCrictl && inCrib:
				if stays {
					differences = append(differences, differ(at, one, two, c[key])...)
				}
			case inCrictl != later:
				// It came or went between the runs of crictl.
			case inCrictl:
				differences = append(differences, fmt.Sprintf("%s: only crictl has it: %v", at, one))
			case !newer[at]:
				differences = append(differences, fmt.Sprintf("%s: only crib has it: %v", at, two))
			}
		}
		return differences
	}
	if a, ok := before.([]any); ok {
		b, isList := own.([]any)
		c, stays := after.([]any)
		if !isList {
			return []string{fmt.Sprintf("%s: crictl has a list, crib %v", path, own)}
		}
		if stays && len(a) != len(c) {
			return nil
		}
		if len(a) != len(b) {
			return []string{fmt.Sprintf("%s: crictl has %d elements, crib %d: %v and %v", path, len(a), len(b), a, b)}
		}
		differences := []string{}
		for i := range a {
			differences = append(differences, differ(fmt.Sprintf("%s[%d]", path, i), a[i], b[i], c[i])...)
		}
		return differences
	}
	changes := !reflect.DeepEqual(before, after)
	if reflect.TypeOf(before) != reflect.TypeOf(own) || (!changes && !reflect.DeepEqual(before, own)) {
		return []string{fmt.Sprintf("%s: crictl has %v, crib %v", path, before, own)}
	}
	return nil
}

func keys(all ...map[string]any) []string {
	set := map[string]bool{}
	for _, one := range all {
		for key := range one {
			set[key] = true
		}
	}
	sorted := []string{}
	for key := range set {
		sorted = append(sorted, key)
	}
	sort.Strings(sorted)
	return sorted
}

func count(value any) int {
	switch value := value.(type) {
	case map[string]any:
		sum := 0
		for _, element := range value {
			sum += count(element)
		}
		return sum
	case []any:
		sum := 0
		for _, element := range value {
			sum += count(element)
		}
		return sum
	default:
		return 1
	}
}
