#!/usr/bin/python3
"""Read ctest's JUnit reports, given as PRESET:FILE: print what failed with its output, what was skipped and why, a line for each
preset, and 'N passed, N failed, N skipped'. Exit 1 when a test failed or none ran."""
import sys
import xml.etree.ElementTree as tree

total = {"passed": 0, "failed": 0, "skipped": 0}
for argument in sys.argv[1:]:
    preset, path = argument.split(":", 1)
    count, seconds = {"passed": 0, "failed": 0, "skipped": 0}, 0.0
    for case in tree.parse(path).getroot().iter("testcase"):
        name, output = case.get("name"), (case.findtext("system-out") or "").strip()
        seconds += float(case.get("time") or 0)
        if case.get("status") == "run":
            count["passed"] += 1
        elif case.find("skipped") is not None and case.get("status") != "fail":
            count["skipped"] += 1
            print(f"skipped {preset} {name}: {output.splitlines()[-1] if output else case.find('skipped').get('message')}")
        else:
            count["failed"] += 1
            print(f"FAILED {preset} {name}\n" + "\n".join("    " + line for line in output.splitlines()[-60:]))
    print(f"{preset}: {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped ({seconds:.0f} s of tests)")
    for key in total:
        total[key] += count[key]
print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
sys.exit(1 if total["failed"] or not total["passed"] else 0)
